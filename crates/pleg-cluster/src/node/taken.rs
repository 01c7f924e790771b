//! Whether the name of the node is taken by another machine. Pure.
//!
//! A Node object of our name with another machine in it is either what an earlier machine of that name left, or the node of a machine
//! that runs. Only the lease can tell: the other one renews it. Clocks of machines differ, so what counts is whether the time in the lease
//! changes while we look, not how old it is.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use tokio::time::Instant;

use super::machine::Machine;

/// The other machine is gone if it does not renew the lease for this long: its lease is 40 s.
pub const SILENCE: Duration = Duration::from_secs(50);

/// Whether the object can be that of this machine: it has one of its ids, or none.
pub fn is_ours(known: &Node, machine: &Machine) -> bool {
    let Some(info) = known.status.as_ref().and_then(|status| status.node_info.as_ref()) else {
        return true;
    };
    let differs = |theirs: &str, ours: &str| !theirs.is_empty() && !ours.is_empty() && theirs != ours;
    !differs(&info.machine_id, &machine.machine_id) || !differs(&info.system_uuid, &machine.system_uuid)
}

/// What was seen of the other machine's lease.
#[derive(Debug, Clone, Default)]
pub struct OtherMachine {
    /// The last renewal, and since when we know of it.
    renewed: Option<(Option<MicroTime>, Instant)>,
}

/// What follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Not known yet.
    Unknown,
    /// The other machine runs.
    Alive,
    /// It has not renewed its lease for [`SILENCE`]: the name is free.
    Gone,
}

impl OtherMachine {
    /// Takes in its lease; none if it has none.
    pub fn observe(&mut self, lease: Option<&Lease>, now: Instant) -> Standing {
        let Some(lease) = lease else { return Standing::Gone };
        let renewal = lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
        match &self.renewed {
            Some((before, since)) if *before == renewal => {
                if now.saturating_duration_since(*since) >= SILENCE {
                    Standing::Gone
                } else {
                    Standing::Unknown
                }
            }
            Some(_) => {
                self.renewed = Some((renewal, now));
                Standing::Alive
            }
            None => {
                self.renewed = Some((renewal, now));
                Standing::Unknown
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use k8s_openapi::api::core::v1::{NodeStatus, NodeSystemInfo};

    use super::*;

    fn node(machine_id: &str, system_uuid: &str) -> Node {
        Node {
            status: Some(NodeStatus {
                node_info: Some(NodeSystemInfo {
                    machine_id: machine_id.to_owned(),
                    system_uuid: system_uuid.to_owned(),
                    ..NodeSystemInfo::default()
                }),
                ..NodeStatus::default()
            }),
            ..Node::default()
        }
    }

    #[test]
    fn a_machine_is_known_by_either_id() {
        let machine = Machine {
            machine_id: "m".to_owned(),
            system_uuid: "u".to_owned(),
            ..Machine::default()
        };
        for (machine_id, system_uuid, ours) in [
            ("m", "u", true),
            // Installed anew.
            ("x", "u", true),
            // Moved to other hardware.
            ("m", "x", true),
            ("", "", true),
            ("x", "y", false),
        ] {
            assert_eq!(
                is_ours(&node(machine_id, system_uuid), &machine),
                ours,
                "{machine_id} {system_uuid}"
            );
        }
        assert!(is_ours(&Node::default(), &machine));
        assert!(is_ours(&node("x", "y"), &Machine::default()));
    }

    #[tokio::test(start_paused = true)]
    async fn only_renewals_count() {
        let lease = |second: i64| Lease {
            spec: Some(LeaseSpec {
                renew_time: Some(MicroTime(Timestamp::from_second(second).unwrap())),
                ..LeaseSpec::default()
            }),
            ..Lease::default()
        };
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        // However old, or far in the future: it is not known yet.
        let mut other = OtherMachine::default();
        assert_eq!(other.observe(Some(&lease(0)), at(0)), Standing::Unknown);
        assert_eq!(other.observe(Some(&lease(0)), at(49)), Standing::Unknown);
        assert_eq!(other.observe(Some(&lease(0)), at(50)), Standing::Gone);
        assert_eq!(other.observe(Some(&lease(1)), at(51)), Standing::Alive);
        assert_eq!(other.observe(Some(&lease(1)), at(60)), Standing::Unknown);
        assert_eq!(OtherMachine::default().observe(None, at(0)), Standing::Gone);
    }
}
