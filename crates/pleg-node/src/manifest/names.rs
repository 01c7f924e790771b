//! What names and paths in a manifest may look like. Names become file names and parts of commands; these rules are why that is safe.

/// The most that Kubernetes lets a pod's name have.
pub(super) const LONGEST_NAME: usize = 253;

/// A label of DNS: container, volume and namespace names.
pub(super) fn label(text: &str) -> Result<(), String> {
    let is = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    if text.is_empty() || text.len() > 63 || !text.bytes().all(is) || text.starts_with('-') || text.ends_with('-') {
        return Err(format!(
            "{} is not a valid name; expected 1 to 63 characters of a-z, 0-9 and -, not starting or ending with -",
            quoted(text)
        ));
    }
    Ok(())
}

/// A name of DNS, of labels with dots between: pods and nodes.
pub(super) fn subdomain(text: &str) -> Result<(), String> {
    let is = |part: &str| {
        let of = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
        !part.is_empty() && part.bytes().all(of) && !part.starts_with('-') && !part.ends_with('-')
    };
    if text.len() > LONGEST_NAME || !text.split('.').all(is) {
        return Err(format!(
            "{} is not a valid name; expected 1 to {LONGEST_NAME} characters of a-z, 0-9, - and ., no part starting or ending with -",
            quoted(text)
        ));
    }
    Ok(())
}

/// The key of a label or an annotation: `name` or `example.com/name`.
pub(super) fn qualified(text: &str) -> Result<(), String> {
    let name = match text.split_once('/') {
        Some((prefix, name)) => {
            subdomain(prefix).map_err(|_| format!("the key prefix {} is not a DNS name", quoted(prefix)))?;
            name
        }
        None => text,
    };
    if name.is_empty() || !label_value(name) {
        return Err(
            "the key must be 1 to 63 characters of A-Z, a-z, 0-9, -, _ and ., starting and ending with a letter or digit".to_owned(),
        );
    }
    Ok(())
}

/// The value of a label. May be empty.
pub(super) fn label_value(text: &str) -> bool {
    let bytes = text.as_bytes();
    let ends =
        bytes.first().is_none_or(u8::is_ascii_alphanumeric) && bytes.last().is_none_or(u8::is_ascii_alphanumeric);
    let is = |&c: &u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    bytes.len() <= 63 && ends && bytes.iter().all(is)
}

/// An environment variable, as Kubernetes takes them since 1.32: anything printable but `=`.
pub(super) fn variable(text: &str) -> Result<(), String> {
    let is = |c: u8| (b' '..=b'~').contains(&c) && c != b'=';
    if text.is_empty() || !text.bytes().all(is) {
        return Err(format!(
            "{} is not valid; expected printable ASCII without =",
            quoted(text)
        ));
    }
    Ok(())
}

/// The name of a port, by which probes may mean it.
pub(super) fn port(text: &str) -> Result<(), String> {
    let letter = text.bytes().any(|c| c.is_ascii_lowercase());
    if label(text).is_err() || text.len() > 15 || !letter || text.contains("--") {
        return Err(format!(
            "{} is not a valid port name; expected 1 to 15 characters of a-z, 0-9 and single -, with at least one letter",
            quoted(text)
        ));
    }
    Ok(())
}

/// A path that stays where it says: absolute, and no step up.
pub(super) fn absolute_path(text: &str) -> Result<(), String> {
    if !text.starts_with('/') {
        return Err(format!(
            "{} is not absolute; expected a path that starts with /",
            quoted(text)
        ));
    }
    if text.split('/').any(|part| part == "..") {
        return Err(format!("{} must not contain ..", quoted(text)));
    }
    if text.len() > 4096 {
        return Err("is longer than 4096 bytes, the limit for a path".to_owned());
    }
    Ok(())
}

/// A path in a container: as above, and without the colon by which runtimes separate the parts of a mount.
pub(super) fn mount_path(text: &str) -> Result<(), String> {
    absolute_path(text)?;
    if text.contains(':') {
        return Err(format!("{} must not contain a colon", quoted(text)));
    }
    if text.split('/').all(|part| part.is_empty() || part == ".") {
        return Err("must not be the root directory of the container".to_owned());
    }
    Ok(())
}

/// A text of somebody else's, fit for a message.
pub(super) fn quoted(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
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
        assert!(label_value("") && label_value("v1.2_3") && !label_value("-x") && !label_value("a b"));
        assert!(
            variable("PATH").is_ok() && variable("a.b-c").is_ok() && variable("a=b").is_err() && variable("").is_err()
        );
        assert!(port("http").is_ok() && port("80").is_err() && port("a--b").is_err() && port(&"x".repeat(16)).is_err());
    }
}
