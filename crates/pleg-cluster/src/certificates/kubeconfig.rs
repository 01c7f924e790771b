//! The state of a kubeconfig, and the one that bootstrap writes. Blocking.

use std::path::{Path, PathBuf};

use k8s_openapi::ByteString;
use kube::config::{AuthInfo, Context, Kubeconfig, NamedAuthInfo, NamedCluster, NamedContext};

use super::pair::CertificateInfo;
use crate::api::with_causes;

/// The name of everything in a kubeconfig that bootstrap writes.
const NAME: &str = "default";

/// What a kubeconfig has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum KubeconfigState {
    /// There is no such file.
    Missing,
    /// It cannot be used, for this reason.
    Unusable(String),
    /// It has other credentials than a certificate.
    NoCertificate,
    /// It has a client certificate.
    Certificate {
        /// What that says.
        info: CertificateInfo,
        /// Its file, if it has one of its own.
        path: Option<PathBuf>,
    },
}

/// Examines the kubeconfig at a path.
pub(super) fn examine(path: &Path) -> KubeconfigState {
    if matches!(path.try_exists(), Ok(false)) {
        return KubeconfigState::Missing;
    }
    let kubeconfig = match Kubeconfig::read_from(path) {
        Ok(kubeconfig) => kubeconfig,
        Err(error) => return KubeconfigState::Unusable(with_causes(&error)),
    };
    let Some(user) = current_user(&kubeconfig) else {
        return KubeconfigState::Unusable("it has no current context with a user".to_owned());
    };
    let (pem, path) = match (&user.client_certificate_data, &user.client_certificate) {
        (Some(data), _) => match decode(data) {
            Some(pem) => (pem, None),
            None => return KubeconfigState::Unusable("its client-certificate-data is not base64".to_owned()),
        },
        (None, Some(file)) => match std::fs::read(file) {
            Ok(pem) => (pem, Some(PathBuf::from(file))),
            Err(error) => {
                return KubeconfigState::Unusable(format!("cannot read its client certificate {file}: {error}"));
            }
        },
        (None, None) => return KubeconfigState::NoCertificate,
    };
    match CertificateInfo::of_pem(&pem) {
        Ok(info) => KubeconfigState::Certificate { info, path },
        Err(error) => KubeconfigState::Unusable(format!("its client certificate cannot be used: {error}")),
    }
}

/// The files whose change changes what a kubeconfig means: itself, and the certificates and keys that it refers to.
pub(crate) fn referenced_files(path: &Path) -> Vec<PathBuf> {
    let mut files = vec![path.to_owned()];
    let Ok(kubeconfig) = Kubeconfig::read_from(path) else {
        return files;
    };
    if let Some(user) = current_user(&kubeconfig) {
        files.extend(
            user.client_certificate
                .iter()
                .chain(&user.client_key)
                .map(PathBuf::from),
        );
    }
    let cluster = current_cluster(&kubeconfig).and_then(|named| named.cluster.as_ref());
    files.extend(
        cluster
            .and_then(|cluster| cluster.certificate_authority.as_ref())
            .map(PathBuf::from),
    );
    files
}

/// A kubeconfig for the cluster of another one, with the certificate and key of a file.
pub(super) fn with_certificate(bootstrap: &Kubeconfig, pem: &Path) -> Option<Kubeconfig> {
    let cluster = current_cluster(bootstrap)?.cluster.clone()?;
    let file = pem.to_str()?.to_owned();
    Some(Kubeconfig {
        api_version: Some("v1".to_owned()),
        kind: Some("Config".to_owned()),
        clusters: vec![NamedCluster {
            name: NAME.to_owned(),
            cluster: Some(cluster),
            ..Default::default()
        }],
        auth_infos: vec![NamedAuthInfo {
            name: NAME.to_owned(),
            auth_info: Some(AuthInfo {
                client_certificate: Some(file.clone()),
                client_key: Some(file),
                ..Default::default()
            }),
            ..Default::default()
        }],
        contexts: vec![NamedContext {
            name: NAME.to_owned(),
            context: Some(Context {
                cluster: NAME.to_owned(),
                user: Some(NAME.to_owned()),
                ..Default::default()
            }),
            ..Default::default()
        }],
        current_context: Some(NAME.to_owned()),
        ..Default::default()
    })
}

fn current_context(kubeconfig: &Kubeconfig) -> Option<&Context> {
    let name = kubeconfig.current_context.as_ref()?;
    let context = kubeconfig.contexts.iter().find(|context| context.name == *name)?;
    context.context.as_ref()
}

fn current_user(kubeconfig: &Kubeconfig) -> Option<&AuthInfo> {
    let name = current_context(kubeconfig)?.user.as_ref()?;
    let user = kubeconfig.auth_infos.iter().find(|user| user.name == *name)?;
    user.auth_info.as_ref()
}

fn current_cluster(kubeconfig: &Kubeconfig) -> Option<&NamedCluster> {
    let name = &current_context(kubeconfig)?.cluster;
    kubeconfig.clusters.iter().find(|cluster| cluster.name == *name)
}

/// Base64, as the API has bytes.
fn decode(base64: &str) -> Option<Vec<u8>> {
    let bytes: ByteString = serde_json::from_value(base64.into()).ok()?;
    Some(bytes.0)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::certificates::pair::made;

    fn kubeconfig(user: &str) -> String {
        format!(
            "{{apiVersion: v1, kind: Config, current-context: c, contexts: [{{name: c, context: {{cluster: k, user: u}}}}], \
             clusters: [{{name: k, cluster: {{server: 'https://192.0.2.9:6443', certificate-authority: ca.crt}}}}], \
             users: [{{name: u, user: {{{user}}}}}]}}"
        )
    }

    #[test]
    fn whatever_is_in_the_file_has_a_state() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        assert_eq!(examine(&path), KubeconfigState::Missing);
        let second = |seconds| Timestamp::from_second(seconds).unwrap();
        let (certificate, _) = made::pem("system:node:n1", second(1_800_000_000), second(1_900_000_000));
        let data = serde_json::to_value(ByteString(certificate.clone().into_bytes())).unwrap();
        std::fs::write(directory.path().join("client.pem"), &certificate).unwrap();
        let of = |text: String| {
            std::fs::write(&path, text).unwrap();
            examine(&path)
        };
        for (text, why) in [
            ("{".to_owned(), ""),
            (String::new(), "no current context"),
            (
                kubeconfig("").replace("current-context: c", "current-context: x"),
                "no current context",
            ),
            (kubeconfig("client-certificate-data: '%'"), "base64"),
            (
                kubeconfig("client-certificate-data: aGFsZg=="),
                "it contains no certificate",
            ),
            (
                kubeconfig("client-certificate: gone.pem"),
                "cannot read its client certificate",
            ),
        ] {
            let state = of(text.clone());
            assert!(
                matches!(&state, KubeconfigState::Unusable(found) if found.contains(why)),
                "{text}: {state:?}"
            );
        }
        assert_eq!(of(kubeconfig("token: abc")), KubeconfigState::NoCertificate);
        let KubeconfigState::Certificate { info, path: None } =
            of(kubeconfig(&format!("client-certificate-data: {data}")))
        else {
            panic!("{:?}", examine(&path));
        };
        assert_eq!(
            (info.common_name.as_str(), info.not_after),
            ("system:node:n1", second(1_900_000_000))
        );
        let state = of(kubeconfig("client-certificate: client.pem, client-key: client.pem"));
        let file = directory.path().join("client.pem");
        assert_eq!(
            state,
            KubeconfigState::Certificate {
                info,
                path: Some(file.clone())
            }
        );
        assert_eq!(
            referenced_files(&path),
            [path.clone(), file.clone(), file, directory.path().join("ca.crt")]
        );
    }

    #[test]
    fn bootstrap_writes_a_kubeconfig_without_its_token() {
        let directory = tempfile::tempdir().unwrap();
        let bootstrap = directory.path().join("bootstrap");
        std::fs::write(&bootstrap, kubeconfig("token: abcdef.0123456789abcdef")).unwrap();
        let bootstrap = Kubeconfig::read_from(&bootstrap).unwrap();
        let made = with_certificate(&bootstrap, Path::new("/var/lib/pleg/pki/client-current.pem")).unwrap();
        let text = serde_json::to_string_pretty(&made).unwrap();
        assert!(!text.contains("abcdef"), "{text}");
        // Relative to the bootstrap kubeconfig, wherever the new one is.
        let ca = directory.path().join("ca.crt");
        assert!(text.contains(ca.to_str().unwrap()), "{text}");
        let path = directory.path().join("kubeconfig");
        std::fs::write(&path, &text).unwrap();
        let read = Kubeconfig::read_from(&path).unwrap();
        let user = current_user(&read).unwrap();
        assert_eq!(
            user.client_certificate.as_deref(),
            Some("/var/lib/pleg/pki/client-current.pem")
        );
        assert_eq!(user.client_key, user.client_certificate);
        let cluster = current_cluster(&read).unwrap().cluster.as_ref().unwrap();
        assert_eq!(cluster.server.as_deref(), Some("https://192.0.2.9:6443"));
        assert_eq!(
            with_certificate(&Kubeconfig::default(), Path::new("/x")).map(drop),
            None
        );
    }
}
