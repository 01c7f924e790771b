//! What names, paths and other texts in a manifest may look like. Names become file names and parts of commands; these rules are why that
//! is safe.

/// The longest pod name that Kubernetes accepts.
pub(crate) const MAX_NAME: usize = 253;
/// The longest path on Linux.
const MAX_PATH: usize = 4096;

/// Why a text is not what its field expects.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidText {
    #[error("{} is not a valid name; expected 1 to 63 characters of a-z, 0-9 and -, not starting or ending with -", quoted(.0))]
    Label(String),
    #[error("{} is not a valid name; expected 1 to {MAX_NAME} characters of a-z, 0-9, - and ., no part starting or ending with -", quoted(.0))]
    Subdomain(String),
    #[error("the key prefix {} is not a DNS name", quoted(.0))]
    KeyPrefix(String),
    #[error(
        "the key must be 1 to 63 characters of A-Z, a-z, 0-9, -, _ and ., starting and ending with a letter or digit"
    )]
    Key,
    #[error("{} is not valid; expected printable ASCII without =", quoted(.0))]
    Variable(String),
    #[error("{} is not a valid port name; expected 1 to 15 characters of a-z, 0-9 and single -, with at least one letter", quoted(.0))]
    Port(String),
    #[error("{} is not absolute; expected a path that starts with /", quoted(.0))]
    NotAbsolute(String),
    #[error("{} must not contain ..", quoted(.0))]
    ParentDirectory(String),
    #[error("is longer than {MAX_PATH} bytes, the limit for a path")]
    PathTooLong,
    #[error("{} must not contain a colon", quoted(.0))]
    Colon(String),
    #[error("must not be the root directory of the container")]
    RootDirectory,
    #[error("{} is not an image reference", quoted(.0))]
    Image(String),
    #[error("{} is not a capability; expected a name such as NET_ADMIN", quoted(.0))]
    Capability(String),
    #[error("{} is not valid; expected printable ASCII without spaces", quoted(.0))]
    RequestTarget(String),
    #[error("{} is not a valid header name", quoted(.0))]
    HeaderName(String),
    #[error("must be printable ASCII")]
    HeaderValue,
    #[error("{} must be a single word", quoted(.0))]
    DnsOption(String),
    #[error("{} is not relative; expected a path that does not start with /", quoted(.0))]
    NotRelative(String),
    #[error("{} is not a domain to search", quoted(.0))]
    SearchDomain(String),
    #[error("{} is not a valid key; expected 1 to 253 characters of A-Z, a-z, 0-9, -, _ and .", quoted(.0))]
    DataKey(String),
    #[error("{} is not a signal; expected a name such as SIGUSR1", quoted(.0))]
    Signal(String),
    #[error("{} is not a UID; expected letters, digits and -", quoted(.0))]
    Uid(String),
}

fn require(valid: bool, error: impl FnOnce() -> InvalidText) -> Result<(), InvalidText> {
    if valid { Ok(()) } else { Err(error()) }
}

fn is_label(text: &str) -> bool {
    let is_valid = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    !text.is_empty() && text.bytes().all(is_valid) && !text.starts_with('-') && !text.ends_with('-')
}

/// A DNS label: container, volume and namespace names.
pub(crate) fn label(text: &str) -> Result<(), InvalidText> {
    require(text.len() <= 63 && is_label(text), || {
        InvalidText::Label(text.to_owned())
    })
}

/// A DNS name: pods and nodes.
pub(crate) fn subdomain(text: &str) -> Result<(), InvalidText> {
    let valid = text.len() <= MAX_NAME && text.split('.').all(is_label);
    require(valid, || InvalidText::Subdomain(text.to_owned()))
}

/// The key of a label or an annotation: `name` or `example.com/name`.
pub(crate) fn qualified(text: &str) -> Result<(), InvalidText> {
    let name = match text.split_once('/') {
        Some((prefix, name)) => {
            subdomain(prefix).map_err(|_| InvalidText::KeyPrefix(prefix.to_owned()))?;
            name
        }
        None => text,
    };
    require(!name.is_empty() && is_label_value(name), || InvalidText::Key)
}

/// The value of a label. May be empty.
pub(crate) fn is_label_value(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends =
        bytes.first().is_none_or(u8::is_ascii_alphanumeric) && bytes.last().is_none_or(u8::is_ascii_alphanumeric);
    let is_valid = |&c: &u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    bytes.len() <= 63 && ends && bytes.iter().all(is_valid)
}

/// The name of an environment variable, as in Kubernetes since 1.32: anything printable but `=`.
pub(super) fn variable(text: &str) -> Result<(), InvalidText> {
    let is_valid = |c: u8| (b' '..=b'~').contains(&c) && c != b'=';
    let valid = !text.is_empty() && text.bytes().all(is_valid);
    require(valid, || InvalidText::Variable(text.to_owned()))
}

/// The name of a port, by which probes may refer to it.
pub(super) fn port(text: &str) -> Result<(), InvalidText> {
    let has_letter = text.bytes().any(|c| c.is_ascii_lowercase());
    let valid = is_label(text) && text.len() <= 15 && has_letter && !text.contains("--");
    require(valid, || InvalidText::Port(text.to_owned()))
}

/// An absolute path without `..`, so that it stays where it says.
pub(super) fn absolute_path(text: &str) -> Result<(), InvalidText> {
    require(text.starts_with('/'), || InvalidText::NotAbsolute(text.to_owned()))?;
    let has_parent = text.split('/').any(|part| part == "..");
    require(!has_parent, || InvalidText::ParentDirectory(text.to_owned()))?;
    require(text.len() <= MAX_PATH, || InvalidText::PathTooLong)
}

/// A relative path without `..`, so that it stays below its directory.
pub(super) fn relative_path(text: &str) -> Result<(), InvalidText> {
    require(!text.starts_with('/'), || InvalidText::NotRelative(text.to_owned()))?;
    let has_parent = text.split('/').any(|part| part == "..");
    require(!has_parent, || InvalidText::ParentDirectory(text.to_owned()))?;
    require(text.len() <= MAX_PATH, || InvalidText::PathTooLong)
}

/// A path in a container: as above, and without the colon by which runtimes separate the parts of a mount.
pub(super) fn mount_path(text: &str) -> Result<(), InvalidText> {
    absolute_path(text)?;
    require(!text.contains(':'), || InvalidText::Colon(text.to_owned()))?;
    let is_root = text.split('/').all(|part| part.is_empty() || part == ".");
    require(!is_root, || InvalidText::RootDirectory)
}

/// An image reference that a runtime can resolve; the runtime knows the rest.
pub(super) fn image(text: &str) -> Result<(), InvalidText> {
    let valid = !text.is_empty() && text.len() <= 1024 && text.bytes().all(|c| c.is_ascii_graphic());
    require(valid, || InvalidText::Image(text.to_owned()))
}

/// A capability, with or without `CAP_`. The kernel knows which exist.
pub(super) fn capability(text: &str) -> Result<(), InvalidText> {
    let is_valid = |c: u8| c.is_ascii_uppercase() || c.is_ascii_digit() || c == b'_';
    let valid = !text.is_empty() && text.len() < 64 && text.bytes().all(is_valid);
    require(valid, || InvalidText::Capability(text.to_owned()))
}

/// The path of an HTTP request: a line break in it would start another request.
pub(super) fn request_target(text: &str) -> Result<(), InvalidText> {
    let valid = text.bytes().all(|c| c.is_ascii_graphic());
    require(valid, || InvalidText::RequestTarget(text.to_owned()))
}

/// The name of an HTTP header.
pub(super) fn header_name(text: &str) -> Result<(), InvalidText> {
    let is_valid = |c: u8| c.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&c);
    let valid = !text.is_empty() && text.bytes().all(is_valid);
    require(valid, || InvalidText::HeaderName(text.to_owned()))
}

/// The value of an HTTP header.
pub(super) fn header_value(text: &str) -> Result<(), InvalidText> {
    let valid = text.bytes().all(|c| c == b'\t' || (b' '..=b'~').contains(&c));
    require(valid, || InvalidText::HeaderValue)
}

/// An option of `resolv.conf`: a line break in it would be another line of the file.
pub(super) fn dns_option(text: &str) -> Result<(), InvalidText> {
    let valid = !text.is_empty() && text.bytes().all(|c| c.is_ascii_graphic());
    require(valid, || InvalidText::DnsOption(text.to_owned()))
}

/// A domain of `resolv.conf`: a DNS name, which may have underscores and a dot at its end, or the root.
pub(super) fn search_domain(text: &str) -> Result<(), InvalidText> {
    let name = text.strip_suffix('.').unwrap_or(text).replace('_', "-");
    let is_part = |part: &str| {
        !part.is_empty()
            && part
                .bytes()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-')
    };
    let valid = text == "." || (name.len() <= MAX_NAME && name.split('.').all(is_part));
    require(valid, || InvalidText::SearchDomain(text.to_owned()))
}

/// The key of an entry of a `ConfigMap` or Secret, which may become the name of a file.
pub(super) fn data_key(text: &str) -> Result<(), InvalidText> {
    let is_valid = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    let valid = !text.is_empty() && text.len() <= MAX_NAME && text.bytes().all(is_valid) && !text.starts_with("..");
    require(valid && text != ".", || InvalidText::DataKey(text.to_owned()))
}

/// The name of a signal. The runtime knows which exist.
pub(super) fn signal(text: &str) -> Result<(), InvalidText> {
    let is_valid = |c: u8| c.is_ascii_uppercase() || c.is_ascii_digit() || c == b'+' || c == b'-';
    let valid = text.starts_with("SIG") && text.len() < 20 && text.bytes().all(is_valid);
    require(valid, || InvalidText::Signal(text.to_owned()))
}

/// The UID of a pod.
pub(super) fn uid(text: &str) -> Result<(), InvalidText> {
    let is_valid = |c: u8| c.is_ascii_alphanumeric() || c == b'-';
    let valid = !text.is_empty() && text.len() <= 128 && text.bytes().all(is_valid);
    require(valid, || InvalidText::Uid(text.to_owned()))
}

/// A text from a manifest, short and escaped for a message.
pub(crate) fn quoted(text: &str) -> String {
    const MAX: usize = 80;
    match text.char_indices().nth(MAX) {
        Some((at, _)) => format!("{}…", pleg_cri::error::quoted(&text[..at])),
        None => pleg_cri::error::quoted(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_file_names_and_nothing_else() {
        for name in ["a", "web-0", "0a", &"x".repeat(63)] {
            assert_eq!(label(name), Ok(()), "{name}");
            assert_eq!(subdomain(name), Ok(()), "{name}");
        }
        for name in [
            "",
            "-a",
            "a-",
            "A",
            "a_b",
            "a b",
            "..",
            "a/b",
            "../a",
            "a\n",
            "ä",
            &"x".repeat(64),
        ] {
            assert!(label(name).is_err(), "{name}");
        }
        for name in [
            "",
            ".",
            "..",
            "a..b",
            ".a",
            "a.",
            "a/b",
            "-a.b",
            "a.-b",
            &"x".repeat(254),
        ] {
            assert!(subdomain(name).is_err(), "{name}");
        }
        assert_eq!(subdomain("node-1.example.com"), Ok(()));
    }

    #[test]
    fn paths_stay_where_they_say() {
        for path in ["/data", "/data/..x", "/a/./b", "/"] {
            assert_eq!(absolute_path(path), Ok(()), "{path}");
        }
        for path in ["", "data", "./x", "/data/../etc", "/..", "../x"] {
            assert!(absolute_path(path).is_err(), "{path}");
        }
        for path in ["/", "//", "/.", "/a:b", "a"] {
            assert!(mount_path(path).is_err(), "{path}");
        }
    }

    #[test]
    fn keys_and_values_of_labels() {
        for key in ["app", "app.kubernetes.io/name", "A_b.c-d", "k8s-app"] {
            assert_eq!(qualified(key), Ok(()), "{key}");
        }
        for key in ["", "/", "a/", "/a", "A.com/x", "a/b/c", "-a", &"x".repeat(64)] {
            assert!(qualified(key).is_err(), "{key}");
        }
        assert!(is_label_value("") && is_label_value("v1.2_3") && !is_label_value("-x") && !is_label_value("a b"));
        assert!(
            variable("PATH").is_ok() && variable("a.b-c").is_ok() && variable("a=b").is_err() && variable("").is_err()
        );
        assert!(port("http").is_ok() && port("80").is_err() && port("a--b").is_err() && port(&"x".repeat(16)).is_err());
    }
}
