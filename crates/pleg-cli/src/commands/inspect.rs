//! `pleg inspect`: everything known about one pod.

use std::process::ExitCode;
use std::sync::Mutex;

use jiff::Timestamp;
use pleg::Metrics;

use crate::args::{Global, Inspect, TextFormat, one_namespace};
use crate::connect::{self, Observed, Pods, Source, Stay};
use crate::filter::PodName;
use crate::wire::Pod;
use crate::{kube, one_pod, output};

/// Names offered in place of one that is not there.
const OFFERED: usize = 8;

pub(crate) async fn run(global: &Global, args: Inspect) -> anyhow::Result<ExitCode> {
    let name = PodName::parse(&args.pod).map_err(crate::Usage)?;
    one_namespace(&name, args.namespace.as_deref())?;
    let source = connect::source(global, &args.observe, Stay::Once, &Metrics::new()?).await?;
    let wanted = |namespace: &str, pod: &str, uid: &str| {
        let named = name.matches(namespace, pod) || (uid == args.pod && !uid.is_empty());
        named && args.namespace.as_deref().is_none_or(|only| only == namespace)
    };
    // The names of the others, in case there is none.
    let others = Mutex::new(Vec::new());
    let note = |namespace: &str, pod: &str, uid: &str| {
        let wanted = wanted(namespace, pod, uid);
        if !wanted && let Ok(mut others) = others.lock() {
            others.push(format!("{namespace}/{pod}"));
        }
        wanted
    };
    let pods = match source {
        Source::Daemon(daemon) => Observed::Daemon(daemon).pods(note).await?,
        Source::Runtime(client) => Pods::Runtime(one_pod::pods(&client, note).await?),
    };
    let others = || others.into_inner().unwrap_or_default();
    let now = Timestamp::now();
    match pods {
        Pods::Runtime(pods) => {
            let described = |pod: &Pod| format!("{} ({})", pod.pod.full_name(), pod.pod.uid);
            let pod = the_one(pods, &args.pod, &name, described, others)?;
            match args.output {
                TextFormat::Text => output::print(&output::pod::describe(&pod, now))?,
                TextFormat::Json => output::print_json(&pod)?,
                TextFormat::Yaml => output::print_yaml(&pod)?,
            }
        }
        Pods::Node(pods) => {
            let described = |pod: &kube::Pod| format!("{} ({})", pod.view.full_name(), pod.view.metadata.uid);
            let pod = the_one(pods, &args.pod, &name, described, others)?;
            match args.output {
                TextFormat::Text => output::print(&output::kube::describe(&pod, now))?,
                TextFormat::Json => output::print_json(&pod.raw)?,
                TextFormat::Yaml => output::print_yaml(&pod.raw)?,
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The only one; none or several are an error.
fn the_one<P>(
    mut pods: Vec<P>,
    typed: &str,
    name: &PodName,
    described: impl Fn(&P) -> String,
    others: impl FnOnce() -> Vec<String>,
) -> anyhow::Result<P> {
    match pods.len() {
        1 => Ok(pods.remove(0)),
        0 => anyhow::bail!("no pod {typed}{}", offer(name, others())),
        n => {
            let names: Vec<_> = pods.iter().map(described).collect();
            anyhow::bail!("{n} pods are called {typed}: {}. Name one by its UID", names.join(", "))
        }
    }
}

/// Names that may have been meant, the closest first.
fn offer(name: &PodName, mut others: Vec<String>) -> String {
    if others.is_empty() {
        return ": the runtime has no pods".to_owned();
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

/// How many letters have to be changed, added, left out or swapped with their neighbour to get from one to the other.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().take(256).collect();
    let b: Vec<char> = b.chars().take(256).collect();
    let mut before = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let changed = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = changed.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_have_been_meant_comes_first() {
        let names = || {
            ["default/web-0", "default/db-0", "kube-system/coredns-x"]
                .map(str::to_owned)
                .to_vec()
        };
        let offered = |text: &str| offer(&PodName::parse(text).unwrap(), names());
        assert_eq!(offered("wbe-0"), ". Did you mean default/web-0, default/db-0?");
        assert_eq!(offered("coredns"), ". Did you mean kube-system/coredns-x?");
        assert_eq!(
            offered("entirely-else"),
            ". There are 3: default/db-0, default/web-0, kube-system/coredns-x"
        );
        assert_eq!(
            offer(&PodName::parse("x").unwrap(), vec![]),
            ": the runtime has no pods"
        );
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
