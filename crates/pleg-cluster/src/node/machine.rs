//! Facts about this machine that a Node object has and that stay the same until the next boot. Blocking reads of small files.

use std::path::Path;

/// What identifies this machine and its system.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Machine {
    /// `/etc/machine-id`: of the installation.
    pub machine_id: String,
    /// Of the hardware, or of the virtual machine.
    pub system_uuid: String,
    /// Another one after each boot.
    pub boot_id: String,
    /// As `uname -r` prints it.
    pub kernel_version: String,
    /// The distribution.
    pub os_image: String,
    /// In Go's words, as Kubernetes has it.
    pub architecture: String,
}

/// Longest identifier or name that is taken from a file.
const MAX_TEXT: usize = 256;

impl Machine {
    /// This machine. What cannot be read is empty.
    pub fn read() -> Self {
        Self::read_below(Path::new("/"))
    }

    fn read_below(root: &Path) -> Self {
        let text = |path: &str| {
            let text = std::fs::read_to_string(root.join(path)).unwrap_or_default();
            first_line(&text)
        };
        let machine_id = text("etc/machine-id");
        let system_uuid = text("sys/class/dmi/id/product_uuid").to_lowercase();
        let os_release = std::fs::read_to_string(root.join("etc/os-release")).unwrap_or_default();
        Self {
            // Where firmware has none (or hides it from us), a kubelet too has the machine id there.
            system_uuid: if system_uuid.is_empty() {
                machine_id.clone()
            } else {
                system_uuid
            },
            machine_id,
            boot_id: text("proc/sys/kernel/random/boot_id"),
            kernel_version: text("proc/sys/kernel/osrelease"),
            os_image: pretty_name(&os_release).unwrap_or_else(|| "Linux".to_owned()),
            architecture: architecture(std::env::consts::ARCH).to_owned(),
        }
    }
}

fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default().trim();
    line.chars().take(MAX_TEXT).collect()
}

/// The name of the distribution in `/etc/os-release`.
fn pretty_name(os_release: &str) -> Option<String> {
    let value = os_release.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="))?;
    let name = first_line(value.trim().trim_matches(['"', '\'']));
    (!name.is_empty()).then_some(name)
}

/// The names of Go for what Rust calls otherwise.
fn architecture(rust: &str) -> &str {
    match rust {
        "x86_64" => "amd64",
        "x86" => "386",
        "aarch64" => "arm64",
        "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_read_from_files() {
        let dir = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("etc/machine-id", "abc\n");
        write(
            "etc/os-release",
            "ID=debian\nPRETTY_NAME=\"Debian GNU/Linux 13 (trixie)\"\n",
        );
        write("proc/sys/kernel/random/boot_id", "boot-1\n");
        write("proc/sys/kernel/osrelease", "6.12.1\n");
        let machine = Machine::read_below(dir.path());
        assert_eq!(machine.os_image, "Debian GNU/Linux 13 (trixie)");
        // Without firmware tables the machine id stands in.
        assert_eq!(
            (machine.machine_id.as_str(), machine.system_uuid.as_str()),
            ("abc", "abc")
        );
        assert_eq!(
            (machine.boot_id.as_str(), machine.kernel_version.as_str()),
            ("boot-1", "6.12.1")
        );
        write("sys/class/dmi/id/product_uuid", "EC2A\n");
        assert_eq!(Machine::read_below(dir.path()).system_uuid, "ec2a");
        let bare = Machine::read_below(&dir.path().join("none"));
        assert_eq!((bare.os_image.as_str(), bare.machine_id.as_str()), ("Linux", ""));
    }

    #[test]
    fn architectures_are_those_of_go() {
        for (rust, go) in [
            ("x86_64", "amd64"),
            ("aarch64", "arm64"),
            ("riscv64", "riscv64"),
            ("s390x", "s390x"),
        ] {
            assert_eq!(architecture(rust), go);
        }
    }
}
