//! What we cope with and a kubelet may not: never a reason for not being healthy, but worth a word before it becomes one.

use std::borrow::Cow;
use std::time::Duration;

use pleg_cri::duration::seconds;
use serde::{Deserialize, Serialize};

use crate::health::diagnosis::{About, Trouble};

/// A stock kubelet refuses lists beyond this.
const KUBELET_LIMIT: usize = 16 << 20;
/// From so many dead containers on.
const MANY_DEAD: usize = 1000;
/// A kubelet that asks about everything one by one for this long is on its way to its threshold.
const LONG_RELIST: Duration = Duration::from_mins(1);
/// A status call that usually takes this long.
const SLOW: Duration = Duration::from_millis(500);

/// Something that may become a trouble.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Warning {
    /// Which.
    pub trouble: Trouble,
    /// What is seen, in one sentence.
    pub text: String,
    /// What that usually means.
    pub means: Cow<'static, str>,
    /// What to type next.
    pub next: String,
}

/// How much there is on the node, and how long a call takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Bytes of the larger of the two lists.
    pub(crate) list: usize,
    pub(crate) dead: usize,
    /// Containers and sandboxes.
    pub(crate) objects: usize,
    /// What a status call takes while nothing else of ours is in flight; none before that is known.
    pub(crate) call: Option<Duration>,
}

impl Load {
    pub(super) fn warnings(&self, endpoint: Option<&str>) -> Vec<Warning> {
        let mut warnings = Vec::new();
        let mut warn = |trouble: Trouble, text: String| {
            warnings.push(Warning {
                trouble,
                text,
                means: trouble.meaning().into(),
                next: trouble.remedy(&About {
                    endpoint,
                    ..About::default()
                }),
            });
        };
        let mebibytes = self.list as f64 / f64::from(1 << 20);
        if self.list > KUBELET_LIMIT {
            warn(Trouble::ListOverLimit, format!("a list is {mebibytes:.1} MiB"));
        } else if self.list > KUBELET_LIMIT / 2 {
            warn(Trouble::ListNearLimit, format!("a list is {mebibytes:.1} MiB"));
        }
        if self.dead >= MANY_DEAD && self.dead > self.objects / 2 {
            let (dead, objects) = (self.dead, self.objects);
            let text = format!("dead containers are {dead} of {objects} containers and sandboxes");
            warn(Trouble::ManyDeadContainers, text);
        }
        if let Some(call) = self.call {
            let all = call.saturating_mul(u32::try_from(self.objects).unwrap_or(u32::MAX));
            if call >= SLOW {
                let text = format!("a status call takes {} even when it is the only call", seconds(call));
                warn(Trouble::RuntimeSlow, text);
            }
            if all >= LONG_RELIST {
                let (all, one) = (seconds(Duration::from_secs(all.as_secs())), milliseconds(call));
                let text = format!(
                    "{} status calls of {one} each, one after another, take {all}",
                    self.objects
                );
                warn(Trouble::LongRelist, text);
            }
        }
        warnings
    }
}

fn milliseconds(call: Duration) -> String {
    format!("{:.1}ms", call.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_warning_has_its_bounds() {
        let usual = Load {
            list: 2 << 20,
            dead: 100,
            objects: 330,
            call: Some(Duration::from_millis(2)),
        };
        let told = |load: Load| -> Vec<Trouble> {
            let warnings = load.warnings(None);
            warnings.into_iter().map(|warning| warning.trouble).collect()
        };
        for (load, expected) in [
            (Load::default(), vec![]),
            (usual, vec![]),
            (Load { list: 8 << 20, ..usual }, vec![]),
            (
                Load {
                    list: (8 << 20) + 1,
                    ..usual
                },
                vec![Trouble::ListNearLimit],
            ),
            (
                Load {
                    list: (16 << 20) + 1,
                    ..usual
                },
                vec![Trouble::ListOverLimit],
            ),
            // kubernetes#64507: 33,212 of them.
            (
                Load {
                    dead: 33_212,
                    objects: 33_400,
                    ..usual
                },
                vec![Trouble::ManyDeadContainers, Trouble::LongRelist],
            ),
            (Load { dead: 999, ..usual }, vec![]),
            // kubernetes#93886: 765 containers, 1m23s.
            (
                Load {
                    objects: 765,
                    call: Some(Duration::from_millis(109)),
                    ..usual
                },
                vec![Trouble::LongRelist],
            ),
            (
                Load {
                    objects: 10,
                    call: Some(Duration::from_millis(500)),
                    ..usual
                },
                vec![Trouble::RuntimeSlow],
            ),
        ] {
            assert_eq!(told(load), expected, "{load:?}");
        }
    }
}
