//! The addresses of pods.

use std::net::Ipv4Addr;

use super::{World, WorldError};

/// Where the addresses of new pods come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PodCidr {
    network: u32,
    /// Bits that differ between pods.
    hosts: u32,
}

impl Default for PodCidr {
    /// `10.0.0.0/8`.
    fn default() -> Self {
        Self {
            network: 10 << 24,
            hosts: u32::MAX >> 8,
        }
    }
}

impl PodCidr {
    fn parse(text: &str) -> Option<Self> {
        let (address, length) = text.split_once('/')?;
        let length: u32 = length.parse().ok().filter(|length| (1..=30).contains(length))?;
        let hosts = u32::MAX >> length;
        let address: Ipv4Addr = address.parse().ok()?;
        Some(Self {
            network: address.to_bits() & !hosts,
            hosts,
        })
    }

    /// One of its addresses, by a random number.
    pub(super) fn address(self, random: u32) -> Ipv4Addr {
        Ipv4Addr::from_bits(self.network | (random & self.hosts))
    }
}

impl World {
    /// `UpdateRuntimeConfig`: the addresses of new pods come from this range. Empty text changes nothing, as on containerd; of a
    /// list, the first IPv4 range counts.
    pub fn set_pod_cidr(&mut self, cidrs: &str) -> Result<(), WorldError> {
        if cidrs.is_empty() {
            return Ok(());
        }
        let found = cidrs.split(',').find_map(|cidr| PodCidr::parse(cidr.trim()));
        self.pod_cidr = found.ok_or_else(|| {
            let cidrs: String = cidrs.chars().take(80).collect();
            WorldError::Invalid(format!(
                "pod CIDR {cidrs:?}: expected an IPv4 range such as 10.88.0.0/16"
            ))
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SimConfig;

    #[test]
    fn addresses_are_of_the_range() {
        let cidr = PodCidr::parse("10.88.0.0/16").unwrap();
        assert_eq!(cidr.address(0x0102_0304), Ipv4Addr::new(10, 88, 3, 4));
        assert_eq!(PodCidr::default().address(0x0102_0304), Ipv4Addr::new(10, 2, 3, 4));
        for bad in ["10.88.0.0", "10.88.0.0/0", "10.88.0.0/31", "fd00::/64", "x/8"] {
            assert_eq!(PodCidr::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_bad_range_changes_nothing() {
        let mut world = World::new(&SimConfig::default()).unwrap();
        world.set_pod_cidr("fd00::/64, 10.88.0.0/16").unwrap();
        let before = world.pod_cidr;
        assert!(world.set_pod_cidr("nonsense").is_err());
        world.set_pod_cidr("").unwrap();
        assert_eq!(world.pod_cidr, before);
    }
}
