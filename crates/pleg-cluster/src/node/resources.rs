//! Capacity and allocatable resources of a node. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// As the API has them: by name, in the canonical form that the API server returns.
pub type ResourceList = BTreeMap<String, Quantity>;

/// Amounts of the resources that a node has of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Resources {
    /// Thousandths of a CPU.
    pub milli_cpu: u64,
    /// Bytes.
    pub memory: u64,
    /// Bytes.
    pub ephemeral_storage: u64,
    /// How many pods.
    pub pods: u64,
}

impl Resources {
    /// What is left for pods: never less than nothing.
    #[must_use]
    pub fn less(self, reserved: Self) -> Self {
        Self {
            milli_cpu: self.milli_cpu.saturating_sub(reserved.milli_cpu),
            memory: self.memory.saturating_sub(reserved.memory),
            ephemeral_storage: self.ephemeral_storage.saturating_sub(reserved.ephemeral_storage),
            pods: self.pods.saturating_sub(reserved.pods),
        }
    }

    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            milli_cpu: self.milli_cpu.saturating_add(other.milli_cpu),
            memory: self.memory.saturating_add(other.memory),
            ephemeral_storage: self.ephemeral_storage.saturating_add(other.ephemeral_storage),
            pods: self.pods.saturating_add(other.pods),
        }
    }

    /// As the API has them.
    pub fn list(self) -> ResourceList {
        let of = |name: &str, text: String| (name.to_owned(), Quantity(text));
        ResourceList::from([
            of("cpu", cpu(self.milli_cpu)),
            of("ephemeral-storage", bytes(self.ephemeral_storage)),
            of("memory", bytes(self.memory)),
            of("pods", decimal(self.pods)),
        ])
    }
}

fn cpu(milli: u64) -> String {
    if milli.is_multiple_of(1000) {
        decimal(milli / 1000)
    } else {
        format!("{milli}m")
    }
}

fn bytes(number: u64) -> String {
    if number.is_multiple_of(1024) {
        with_suffix(number, 1024, ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"])
    } else {
        decimal(number)
    }
}

fn decimal(number: u64) -> String {
    with_suffix(number, 1000, ["", "k", "M", "G", "T", "P", "E"])
}

/// With the largest suffix that leaves a whole number. Any other form would differ from what the API server has, and be patched again and
/// again.
fn with_suffix(mut number: u64, base: u64, suffixes: [&str; 7]) -> String {
    let mut suffix = 0;
    while number > 0 && number.is_multiple_of(base) && suffix + 1 < suffixes.len() {
        number /= base;
        suffix += 1;
    }
    format!("{number}{}", suffixes[suffix])
}

/// Whether a resource is an extended one: a name with a domain that is not Kubernetes' own. Operators add those to the capacity of a node
/// by a patch of its status, and its agent makes them allocatable.
pub fn is_extended(name: &str) -> bool {
    let Some((domain, _)) = name.split_once('/') else {
        return false;
    };
    !name.starts_with("requests.") && domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_canonical() {
        for (number, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1Ki"),
            (16 << 30, "16Gi"),
            (16_318_392 << 10, "16318392Ki"),
            (123_000, "123k"),
        ] {
            assert_eq!(bytes(number), text);
        }
        assert_eq!(
            (cpu(2000), cpu(1500), cpu(0)),
            ("2".to_owned(), "1500m".to_owned(), "0".to_owned())
        );
        assert_eq!((decimal(110), decimal(5000)), ("110".to_owned(), "5k".to_owned()));
    }

    #[test]
    fn allocatable_is_never_negative() {
        let capacity = Resources {
            milli_cpu: 2000,
            memory: 8 << 30,
            ephemeral_storage: 100 << 30,
            pods: 110,
        };
        let reserved = Resources {
            milli_cpu: 500,
            memory: 100 << 20,
            ephemeral_storage: u64::MAX,
            pods: 0,
        };
        let left = capacity.less(reserved.plus(reserved));
        assert_eq!((left.milli_cpu, left.ephemeral_storage, left.pods), (1000, 0, 110));
        let list = left.list();
        assert_eq!((list["cpu"].0.as_str(), list["memory"].0.as_str()), ("1", "7992Mi"));
    }

    #[test]
    fn extended_resources_have_a_foreign_domain() {
        for (name, extended) in [
            ("example.com/dongle", true),
            ("nvidia.com/gpu", true),
            ("cpu", false),
            ("hugepages-2Mi", false),
            ("attachable-volumes-csi-x", false),
            ("node.kubernetes.io/x", false),
            ("kubernetes.io/x", false),
            ("requests.nvidia.com/gpu", false),
        ] {
            assert_eq!(is_extended(name), extended, "{name}");
        }
    }
}
