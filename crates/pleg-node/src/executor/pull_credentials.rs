//! Credentials of registries, from image pull secrets. Pure.
//!
//! A secret contains what `docker login` writes: by registry, a user and a password. Which of them are for an image is decided as in the
//! kubelet: the host may have wildcards within its labels, the port must be the same, and the path is a prefix. More specific ones come first,
//! and all are tried in turn, so that a password can be changed without a gap.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use pleg_cri::v1;
use serde::Deserialize;
use serde_json::Value;

use super::objects::ObjectData;

/// The entry of a secret of type `kubernetes.io/dockerconfigjson`, and of the older `kubernetes.io/dockercfg`.
const CONFIG_JSON: &str = ".dockerconfigjson";
const CONFIG: &str = ".dockercfg";
/// The registry of images whose names have none, as `docker login` writes it.
const DEFAULT_REGISTRY: &str = "index.docker.io";
/// At most so many credentials are tried for one image.
const MAX_TRIED: usize = 16;

/// Credentials, by registry: `host` or `host/path`.
#[derive(Debug, Default)]
pub(super) struct Keyring(BTreeMap<String, Vec<Credential>>);

/// A user of a registry.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Credential {
    user: String,
    password: String,
}

impl std::fmt::Debug for Credential {
    /// Without the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credential")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

impl From<Credential> for v1::AuthConfig {
    fn from(credential: Credential) -> Self {
        Self {
            username: credential.user,
            password: credential.password,
            ..Default::default()
        }
    }
}

/// What a secret contains.
#[derive(Deserialize)]
struct ConfigJson {
    #[serde(default)]
    auths: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
    /// `user:password` in base64; counts before the other two.
    #[serde(default)]
    auth: String,
}

impl Keyring {
    /// Adds the credentials of a secret. Returns what is wrong with it; the rest of it is used.
    pub(super) fn add(&mut self, secret: &ObjectData) -> Vec<String> {
        let parsed = match (secret.get(CONFIG_JSON), secret.get(CONFIG)) {
            (Some(text), _) => serde_json::from_slice::<ConfigJson>(text).map(|config| config.auths),
            (None, Some(text)) => serde_json::from_slice(text),
            (None, None) => return vec![format!("has neither {CONFIG_JSON} nor {CONFIG}")],
        };
        let entries: BTreeMap<String, Value> = match parsed {
            Ok(entries) => entries,
            // Without the text: it is a secret.
            Err(error) => {
                return vec![format!(
                    "is not valid JSON: line {}, column {}",
                    error.line(),
                    error.column()
                )];
            }
        };
        let mut problems = Vec::new();
        for (registry, entry) in entries {
            match credential(entry) {
                Some(credential) => self.0.entry(key(&registry)).or_default().push(credential),
                None => problems.push(format!("has no usable user and password for {registry}")),
            }
        }
        problems
    }

    /// The credentials for an image, those of the most specific registry first.
    pub(super) fn lookup(&self, image: &str) -> Vec<Credential> {
        let repository = repository(image);
        // Sorted backwards, a longer path is before its prefix.
        let matching = self.0.iter().rev().filter(|(key, _)| matches(key, &repository));
        let mut found: Vec<Credential> = matching.flat_map(|(_, all)| all.clone()).collect();
        if found.is_empty() && is_of_default_registry(&repository) {
            found.extend(self.0.get(DEFAULT_REGISTRY).into_iter().flatten().cloned());
        }
        found.truncate(MAX_TRIED);
        found
    }
}

fn credential(entry: Value) -> Option<Credential> {
    let Entry {
        username,
        password,
        auth,
    } = serde_json::from_value(entry).ok()?;
    if auth.is_empty() {
        return Some(Credential {
            user: username,
            password,
        });
    }
    let text = String::from_utf8(base64(auth.trim())?).ok()?;
    let (user, password) = text.split_once(':')?;
    Some(Credential {
        user: user.to_owned(),
        password: password.to_owned(),
    })
}

/// Decodes base64, with or without its padding.
fn base64(text: &str) -> Option<Vec<u8>> {
    let padding = "=".repeat((4 - text.len() % 4) % 4);
    let decoded = serde_json::from_value::<ByteString>(Value::String(format!("{text}{padding}")));
    decoded.ok().map(|bytes| bytes.0)
}

/// Where the credentials of a registry are kept. `/v1/` and `/v2/`, which belong to the protocol, mean the host alone.
fn key(registry: &str) -> String {
    let registry = registry
        .strip_prefix("https://")
        .or_else(|| registry.strip_prefix("http://"))
        .unwrap_or(registry);
    let (host, path) = split(registry);
    let path = match path.get(..4) {
        Some("/v1/" | "/v2/") => &path[3..],
        _ => path,
    };
    if path == "/" {
        host.to_owned()
    } else {
        format!("{host}{path}")
    }
}

/// The name of an image without tag and digest, with its registry.
fn repository(image: &str) -> String {
    let image = image.split('@').next().unwrap_or(image);
    let name_at = image.rfind('/').map_or(0, |at| at + 1);
    let end = image[name_at..].find(':').map_or(image.len(), |at| name_at + at);
    let name = &image[..end];
    match name.split_once('/') {
        None => format!("docker.io/library/{name}"),
        Some((first, _)) if !first.contains(['.', ':']) && first != "localhost" => format!("docker.io/{name}"),
        Some(_) => name.to_owned(),
    }
}

fn is_of_default_registry(repository: &str) -> bool {
    matches!(split(repository).0, "docker.io" | DEFAULT_REGISTRY)
}

/// Host and path of `host/path`.
fn split(text: &str) -> (&str, &str) {
    text.find('/').map_or((text, ""), |at| text.split_at(at))
}

/// Whether credentials kept there are for a repository.
fn matches(key: &str, repository: &str) -> bool {
    let ((key_host, key_path), (host, path)) = (split(key), split(repository));
    let port = |host: &str| host.rsplit_once(':').map(|(_, port)| port.to_owned());
    let name = |host: &str| host.rsplit_once(':').map_or(host, |(name, _)| name).to_owned();
    if port(key_host) != port(host) || !path.starts_with(key_path) {
        return false;
    }
    let (patterns, labels) = (name(key_host), name(host));
    patterns.split('.').count() == labels.split('.').count()
        && patterns
            .split('.')
            .zip(labels.split('.'))
            .all(|(pattern, label)| glob(pattern.as_bytes(), label.as_bytes()))
}

/// Whether a label matches a pattern with `*` and `?`. Takes time in proportion to both, whatever the pattern.
fn glob(pattern: &[u8], label: &[u8]) -> bool {
    let (mut p, mut l) = (0, 0);
    // Where to go on if what follows the last star does not match.
    let mut retry = None::<(usize, usize)>;
    while l < label.len() {
        match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p + 1, l));
                p += 1;
            }
            Some(&byte) if byte == b'?' || byte == label[l] => {
                p += 1;
                l += 1;
            }
            _ => match retry {
                Some((after, from)) => {
                    retry = Some((after, from + 1));
                    (p, l) = (after, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(key: &str, text: &str) -> ObjectData {
        ObjectData::from([(key.to_owned(), text.as_bytes().to_vec())])
    }

    /// The users whose credentials are tried, when a secret has these registries, each with a user of its name.
    fn users(registries: &[&str], image: &str) -> Vec<String> {
        let auths: serde_json::Map<String, Value> = registries
            .iter()
            .map(|registry| {
                let entry = serde_json::json!({"username": registry, "password": "x"});
                ((*registry).to_owned(), entry)
            })
            .collect();
        let mut keyring = Keyring::default();
        let text = serde_json::json!({ "auths": auths }).to_string();
        assert_eq!(keyring.add(&secret(CONFIG_JSON, &text)), Vec::<String>::new());
        keyring.lookup(image).into_iter().map(|found| found.user).collect()
    }

    #[test]
    fn registries_match_images_as_in_the_kubelet() {
        for (registries, image, wanted) in [
            (&["r.io"][..], "r.io/app:1", &["r.io"][..]),
            (&["https://r.io"], "r.io/app@sha256:12", &["https://r.io"]),
            (&["https://r.io/v2/"], "r.io/app", &["https://r.io/v2/"]),
            (&["r.io"], "other.io/app", &[]),
            (&["r.io"], "r.io:5000/app", &[]),
            (&["r.io:5000"], "r.io:5000/app:1", &["r.io:5000"]),
            // A path is a prefix, and the longer one is first.
            (&["r.io", "r.io/team"], "r.io/team/app", &["r.io/team", "r.io"]),
            (&["r.io/team"], "r.io/others/app", &[]),
            (&["r.io/v1/team"], "r.io/team/app", &["r.io/v1/team"]),
            // Wildcards match within a label.
            (&["*.r.io"], "eu.r.io/app", &["*.r.io"]),
            (&["*.r.io"], "a.eu.r.io/app", &[]),
            (&["e?.r*.io"], "eu.registry.io/app", &["e?.r*.io"]),
            (&["*.io"], "r.com/app", &[]),
            // Names without a registry are of the default one.
            (
                &["https://index.docker.io/v1/"],
                "nginx",
                &["https://index.docker.io/v1/"],
            ),
            (&["index.docker.io"], "team/app:2", &["index.docker.io"]),
            (&["docker.io/team"], "team/app:2", &["docker.io/team"]),
            (&["index.docker.io"], "r.io/app", &[]),
            (&["index.docker.io"], "localhost/app", &[]),
        ] {
            assert_eq!(users(registries, image), wanted, "{registries:?} {image}");
        }
    }

    #[test]
    fn both_forms_of_secrets_are_read() {
        let mut keyring = Keyring::default();
        // "me:pass:word", with its padding and without.
        let json = r#"{"auths": {"a.io": {"auth": "bWU6cGFzczp3b3Jk", "username": "ignored"}}}"#;
        assert!(keyring.add(&secret(CONFIG_JSON, json)).is_empty());
        let older = r#"{"a.io": {"username": "you", "password": "p"}, "b.io": {"auth": "bWU6cA"}, "c.io": {"auth": "bWU6cA=="}}"#;
        assert!(keyring.add(&secret(CONFIG, older)).is_empty());
        let found = |image| {
            let all = keyring.lookup(image).into_iter();
            all.map(|found| format!("{}/{}", found.user, found.password))
                .collect::<Vec<_>>()
        };
        // Two secrets for one registry: in the order of the pod.
        assert_eq!(found("a.io/x"), ["me/pass:word", "you/p"]);
        assert_eq!(
            (found("b.io/x"), found("c.io/x")),
            (vec!["me/p".to_owned()], vec!["me/p".to_owned()])
        );
        assert!(!format!("{keyring:?}").contains("pass:word"));
    }

    #[test]
    fn what_cannot_be_used_is_named_without_its_content() {
        for (key, text, wanted) in [
            ("other", "", "has neither .dockerconfigjson nor .dockercfg"),
            (CONFIG_JSON, "{", "is not valid JSON: line 1, column 1"),
            (
                CONFIG,
                r#"{"a.io": {"auth": "!"}}"#,
                "has no usable user and password for a.io",
            ),
            (
                CONFIG,
                r#"{"a.io": {"auth": "bm8="}}"#,
                "has no usable user and password for a.io",
            ),
        ] {
            let mut keyring = Keyring::default();
            assert_eq!(keyring.add(&secret(key, text)), [wanted]);
            assert!(keyring.lookup("a.io/x").is_empty());
        }
    }
}
