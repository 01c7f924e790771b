//! `pleg inspect`: everything known about one pod, found by its name, its UID or an id.

use std::fmt::Write as _;
use std::process::ExitCode;

use jiff::Timestamp;
use pleg::{Metrics, PodRef};

use crate::args::{Global, Inspect, TextFormat, one_namespace};
use crate::connect::{self, Pods, Source, Stay};
use crate::filter::PodName;
use crate::http::client::Daemon;
use crate::output::event::EventTable;
use crate::text::clean;
use crate::wire::Line;
use crate::{node_pod, one_pod, output, wire};

/// Names offered in place of one that is not there.
const OFFERED: usize = 8;
/// The last events of the pod that are shown.
const EVENTS: usize = 10;

pub(crate) async fn run(global: &Global, args: Inspect) -> anyhow::Result<ExitCode> {
    let name = PodName::parse(&args.pod).map_err(crate::Usage)?;
    one_namespace(&name, args.namespace.as_deref())?;
    let wanted = Wanted {
        typed: &args.pod,
        name,
        namespace: args.namespace.as_deref(),
    };
    let source = connect::source(global, &args.observe, Stay::Once, &Metrics::new()?).await?;
    let now = Timestamp::now();
    match source {
        Source::Daemon(daemon) => match connect::of_daemon(&daemon, &[]).await? {
            Pods::Runtime(mut pods) => {
                let candidates: Vec<_> = pods.iter().map(Candidate::of_runtime).collect();
                let place = wanted.find(&candidates)?;
                let pod = pods.swap_remove(place);
                let text = || output::pod::describe(&pod, now);
                print(&args, &pod, text, Some((&daemon, &pod.pod))).await?;
            }
            Pods::Node(mut pods) => {
                let candidates: Vec<_> = pods.iter().map(Candidate::of_node).collect();
                let place = wanted.find(&candidates)?;
                let pod = pods.swap_remove(place);
                let named = PodRef {
                    uid: pod.view.uid().into(),
                    namespace: pod.view.namespace().into(),
                    name: pod.view.name().into(),
                };
                let text = || output::kube::describe(&pod, now);
                print(&args, &pod.raw, text, Some((&daemon, &named))).await?;
            }
        },
        Source::Runtime(client) => {
            let mut found = Ok(0);
            let pods = one_pod::pods(&client, |listed| {
                let candidates: Vec<_> = listed.iter().map(Candidate::of_lists).collect();
                found = wanted.find(&candidates);
                // No other pod is asked about.
                let place = found.as_ref().ok().copied();
                let mut at = 0;
                listed.retain(|_| {
                    at += 1;
                    Some(at - 1) == place
                });
            });
            let pods = pods.await?;
            found?;
            let pod = pods.first().ok_or_else(|| anyhow::anyhow!("no pod {}", args.pod))?;
            print(&args, pod, || output::pod::describe(pod, now), None).await?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

async fn print<P: serde::Serialize>(
    args: &Inspect,
    pod: &P,
    text: impl FnOnce() -> String,
    asked: Option<(&Daemon, &PodRef)>,
) -> anyhow::Result<()> {
    match args.output {
        TextFormat::Json => output::print_json(pod),
        TextFormat::Yaml => output::print_yaml(pod),
        TextFormat::Text => {
            let mut text = text();
            if let Some((daemon, pod)) = asked {
                text += &last_events(daemon, pod).await?;
            }
            output::print(&text)
        }
    }
}

/// What the daemon still holds of the pod's events, the newest last.
async fn last_events(daemon: &Daemon, pod: &PodRef) -> anyhow::Result<String> {
    let query = [("pod", format!("{}/{}", pod.namespace, pod.name))];
    let lines = daemon.query_text("/api/v1/events", &query).await?;
    let of_pod =
        |line: &Line| matches!(line, Line::Event(event) if event.pod.as_ref().is_some_and(|of| of.uid == pod.uid));
    let events: Vec<Line> = lines
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .filter(of_pod)
        .collect();
    if events.is_empty() {
        return Ok(String::new());
    }
    let last = &events[events.len().saturating_sub(EVENTS)..];
    let mut table = EventTable::for_stdout(false);
    table.fit(last);
    let mut text = format!("Events (the last {} of {} held):\n", last.len(), events.len());
    let head = table.head();
    for line in std::iter::once(head).chain(last.iter().map(|event| table.row(event))) {
        let _ = writeln!(text, "  {}", line.trim_end());
    }
    Ok(text)
}

/// A pod that may be meant.
struct Candidate<'a> {
    namespace: &'a str,
    name: &'a str,
    uid: &'a str,
    /// Of its sandboxes and containers.
    ids: Vec<&'a str>,
}

impl<'a> Candidate<'a> {
    fn of_runtime(pod: &'a wire::Pod) -> Self {
        let sandboxes = pod.sandboxes.iter().map(|sandbox| sandbox.id.as_str());
        let containers = pod.containers.iter().map(|container| container.id.as_str());
        Self {
            namespace: &pod.pod.namespace,
            name: &pod.pod.name,
            uid: pod.pod.uid.as_str(),
            ids: sandboxes.chain(containers).collect(),
        }
    }

    /// Kubernetes writes the runtime's name before an id, and has no sandboxes.
    fn of_node(pod: &'a node_pod::Pod) -> Self {
        let view = &pod.view;
        let containers = view.init_containers().iter().chain(view.containers());
        let ids = containers.filter_map(|container| container.container_id.as_ref()?.split_once("://"));
        Self {
            namespace: view.namespace(),
            name: view.name(),
            uid: view.uid(),
            ids: ids.map(|(_, id)| id).collect(),
        }
    }

    fn of_lists(listed: &'a one_pod::Listed) -> Self {
        Self {
            namespace: &listed.pod.namespace,
            name: &listed.pod.name,
            uid: listed.pod.uid.as_str(),
            ids: listed.ids().collect(),
        }
    }

    fn full_name(&self) -> String {
        format!("{}/{}", clean(self.namespace), clean(self.name))
    }
}

/// The pod that was typed.
struct Wanted<'a> {
    typed: &'a str,
    name: PodName,
    namespace: Option<&'a str>,
}

impl Wanted<'_> {
    /// The place of the only pod that is meant; none or several are an error. A name or a whole UID counts before the beginning of an id.
    fn find(&self, candidates: &[Candidate<'_>]) -> anyhow::Result<usize> {
        let right = |pod: &Candidate<'_>| self.namespace.is_none_or(|only| only == pod.namespace);
        let of = |is: &dyn Fn(&Candidate<'_>) -> bool| -> Vec<usize> {
            let pods = candidates.iter().enumerate();
            pods.filter(|(_, pod)| right(pod) && is(pod))
                .map(|(at, _)| at)
                .collect()
        };
        let typed = self.typed;
        let named = of(&|pod| self.name.matches(pod.namespace, pod.name) || pod.uid == typed);
        match &*named {
            [only] => return Ok(*only),
            [] => {}
            several => {
                let names = several.iter().filter_map(|at| candidates.get(*at));
                let names: Vec<_> = names
                    .map(|pod| format!("{} ({})", pod.full_name(), clean(pod.uid)))
                    .collect();
                let n = names.len();
                anyhow::bail!(
                    "{n} pods are called {typed}: {}. Specify one by its UID",
                    names.join(", ")
                )
            }
        }
        let is_id = typed.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
        let begins = |pod: &Candidate<'_>| pod.ids.iter().chain([&pod.uid]).any(|id| id.starts_with(typed));
        match &*of(&|pod| is_id && begins(pod)) {
            [only] => Ok(*only),
            [] => {
                let others = candidates
                    .iter()
                    .filter(|pod| !self.name.matches(pod.namespace, pod.name));
                let others = others.map(Candidate::full_name).collect();
                let offered = offer(&self.name, others, ": the runtime has no pods");
                anyhow::bail!("no pod, container or sandbox {typed}{offered}")
            }
            several => {
                let pods = several.iter().filter_map(|at| candidates.get(*at));
                let ids = pods.flat_map(|pod| {
                    let ids = pod.ids.iter().chain([&pod.uid]).filter(|id| id.starts_with(typed));
                    ids.map(|id| format!("{} of {}", clean(id), pod.full_name()))
                });
                let all: Vec<_> = ids.collect();
                let more = if all.len() > OFFERED { ", …" } else { "" };
                let some: Vec<_> = all.iter().take(OFFERED).map(String::as_str).collect();
                anyhow::bail!(
                    "{typed} matches {} ids: {}{more}. Type more of it",
                    all.len(),
                    some.join(", ")
                )
            }
        }
    }
}

/// Names that may have been meant, the closest first; `nothing` if there are none at all.
pub(super) fn offer(name: &PodName, mut others: Vec<String>, nothing: &str) -> String {
    if others.is_empty() {
        return nothing.to_owned();
    }
    let wanted = name.to_string();
    let key = |other: &String| {
        let bare = other.split_once('/').map_or(other.as_str(), |(_, bare)| bare);
        let contained = other.contains(&name.name) || (!bare.is_empty() && name.name.contains(bare));
        let apart = distance(&name.name, bare).min(distance(&wanted, other));
        (!contained, apart)
    };
    others.sort_by_cached_key(|other| (key(other), other.clone()));
    others.dedup();
    let close: Vec<_> = others
        .iter()
        .filter(|other| {
            let (far, apart) = key(other);
            !far || apart <= wanted.chars().count() / 3 + 1
        })
        .take(OFFERED)
        .cloned()
        .collect();
    let n = others.len();
    if close.is_empty() {
        others.sort();
        let some: Vec<_> = others.into_iter().take(OFFERED).collect();
        let more = if n > some.len() { ", …" } else { "" };
        format!(". There are {n}: {}{more}", some.join(", "))
    } else {
        format!(". Did you mean {}?", close.join(", "))
    }
}

/// The edit distance of two names, where swapping two neighbouring letters is one edit.
fn distance(a: &str, b: &str) -> usize {
    let shortened = |text: &str| text.chars().take(256).collect::<String>();
    strsim::osa_distance(&shortened(a), &shortened(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_is_found_by_what_is_typed() {
        let pod = |namespace, name, uid, ids: &[&'static str]| Candidate {
            namespace,
            name,
            uid,
            ids: ids.to_vec(),
        };
        let pods = [
            pod("default", "web", "8f3c-1", &["abc1", "abc2"]),
            pod("default", "db", "8f3c-2", &["abd1"]),
            pod("kube-system", "web", "9", &["feed"]),
            pod("default", "abc", "7", &[]),
        ];
        let find = |typed: &str, namespace: Option<&str>| {
            let wanted = Wanted {
                typed,
                name: PodName::parse(typed).unwrap(),
                namespace,
            };
            wanted.find(&pods).map_err(|error| error.to_string())
        };
        for (typed, namespace, at) in [
            ("db", None, 1),
            ("default/web", None, 0),
            ("web", Some("kube-system"), 2),
            ("8f3c-2", None, 1),
            ("abd", None, 1),
            // Several ids of one pod name that pod.
            ("abc1", None, 0),
            ("fe", None, 2),
            // A name counts before an id.
            ("abc", None, 3),
        ] {
            assert_eq!(find(typed, namespace), Ok(at), "{typed}");
        }
        assert_eq!(
            find("web", None).unwrap_err(),
            "2 pods are called web: default/web (8f3c-1), kube-system/web (9). Specify one by its UID"
        );
        assert_eq!(
            find("ab", None).unwrap_err(),
            "ab matches 3 ids: abc1 of default/web, abc2 of default/web, abd1 of default/db. Type more of it"
        );
        assert!(find("feed", Some("default")).is_err());
    }

    #[test]
    fn what_may_have_been_meant_comes_first() {
        let names = || {
            ["default/web-0", "default/db-0", "kube-system/coredns-x"]
                .map(str::to_owned)
                .to_vec()
        };
        let offered = |text: &str| offer(&PodName::parse(text).unwrap(), names(), "");
        assert_eq!(offered("wbe-0"), ". Did you mean default/web-0, default/db-0?");
        assert_eq!(offered("coredns"), ". Did you mean kube-system/coredns-x?");
        assert_eq!(
            offered("entirely-else"),
            ". There are 3: default/db-0, default/web-0, kube-system/coredns-x"
        );
        assert_eq!(offer(&PodName::parse("x").unwrap(), vec![], ": none"), ": none");
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
