//! Which pod or container a name means, from what the history knows: also pods that are gone.
//!
//! The whole name of a pod counts before its UID, that before the beginning of a name or UID, and that before a container's id. Several
//! UIDs of one name are one pod; two names are an error, unless a `*` asks for all of them.

use std::collections::BTreeMap;

use pleg::event::Subject as EventSubject;
use pleg::{EventType, PodRef};
use pleg_history::{Entry, EntryType, HistoryPod, Order, PodMatch, Query};

use super::source::Source;
use crate::args::one_namespace;
use crate::commands::inspect::offer;
use crate::filter::PodName;
use crate::text::clean;

/// Names that an error lists.
const OFFERED: usize = 8;
/// The shortest beginning of a container's id.
const SHORTEST_ID: usize = 4;
/// Entries that are looked at for the beginning of an id.
const LOOKED_AT: usize = 500;

/// What is asked about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) pods: PodMatch,
    /// One container of the pod, by its id.
    pub(super) container: Option<String>,
    /// The newest pod; none for all that begin like something.
    pub(super) newest: Option<PodRef>,
}

/// Finds what was typed.
pub(super) async fn find(source: &Source, typed: &str, namespace: Option<&str>) -> anyhow::Result<Subject> {
    if let Some(prefix) = typed.strip_suffix('*') {
        let name = PodName::parse(if prefix.is_empty() { typed } else { prefix }).map_err(crate::Usage)?;
        one_namespace(&name, namespace)?;
        let mut pods = PodMatch::parse(typed);
        if let (PodMatch::Prefix { namespace: own, .. }, Some(only)) = (&mut pods, namespace) {
            *own = Some(only.to_owned());
        }
        return Ok(Subject {
            pods,
            container: None,
            newest: None,
        });
    }
    let name = PodName::parse(typed).map_err(crate::Usage)?;
    one_namespace(&name, namespace)?;
    let within = name.namespace.as_deref().or(namespace).map(str::to_owned);
    let known = |pod: PodMatch| {
        let query = Query {
            pod: Some(pod),
            namespace: within.clone(),
            ..Query::default()
        };
        source.pods(query)
    };
    let whole = PodMatch::Name {
        namespace: within.clone(),
        name: name.name.clone(),
    };
    if let Some(subject) = only_name(typed, known(whole).await?)? {
        return Ok(subject);
    }
    if name.namespace.is_none() {
        let mut of_uid = known(PodMatch::Uid(typed.into())).await?;
        if let Some(pod) = of_uid.pop() {
            return Ok(of_one_uid(&pod));
        }
    }
    let beginning = PodMatch::Prefix {
        namespace: within.clone(),
        prefix: name.name.clone(),
    };
    if let Some(subject) = only_beginning(typed, &name.name, known(beginning).await?)? {
        return Ok(subject);
    }
    let is_id = typed.len() >= SHORTEST_ID && typed.chars().all(|c| c.is_ascii_hexdigit());
    if is_id {
        let query = Query {
            container: Some(typed.to_owned()),
            namespace: within.clone(),
            types: [
                EventType::ContainerStarted,
                EventType::ContainerDied,
                EventType::ContainerCreated,
            ]
            .map(EntryType::Event)
            .to_vec(),
            limit: Some(LOOKED_AT),
            order: Order::NewestFirst,
            ..Query::default()
        };
        if let Some(subject) = only_container(typed, &source.entries(query).await?)? {
            return Ok(subject);
        }
    }
    let query = Query {
        namespace: within,
        ..Query::default()
    };
    let others = source.pods(query).await?;
    let others = others.iter().map(full_name).collect();
    anyhow::bail!(
        "no pod or container {} in {}{}",
        clean(typed),
        source.name(),
        offer(&name, others, ": it knows no pods")
    )
}

/// The pods of one name; an error if several pods in different namespaces have it.
fn only_name(typed: &str, pods: Vec<HistoryPod>) -> anyhow::Result<Option<Subject>> {
    let by_name = by_name(pods);
    let mut names = by_name.iter();
    let Some((first, newest)) = names.next() else {
        return Ok(None);
    };
    if by_name.len() == 1 {
        return Ok(Some(of_name(newest)));
    }
    anyhow::bail!(
        "{} pods are called {}: {}. Add the namespace, as in {}",
        by_name.len(),
        clean(typed),
        list(by_name.keys()),
        clean(first)
    )
}

/// The pod whose name or UID begins like this; an error if several do.
fn only_beginning(typed: &str, prefix: &str, pods: Vec<HistoryPod>) -> anyhow::Result<Option<Subject>> {
    let uids: Vec<&HistoryPod> = pods.iter().filter(|pod| pod.uid.starts_with(prefix)).collect();
    if let ([only], true) = (&*uids, pods.len() == 1) {
        return Ok(Some(of_one_uid(only)));
    }
    let by_name = by_name(pods);
    match by_name.len() {
        0 => Ok(None),
        1 => Ok(by_name.values().next().map(of_name)),
        n => anyhow::bail!(
            "{} matches {n} pods: {}. Type more of it",
            clean(typed),
            list(by_name.keys())
        ),
    }
}

/// The container whose id begins like this; an error if several do.
fn only_container(typed: &str, entries: &[Entry]) -> anyhow::Result<Option<Subject>> {
    let mut found: BTreeMap<&str, &PodRef> = BTreeMap::new();
    for event in entries.iter().filter_map(Entry::event) {
        if let (Some(EventSubject::Container(container)), Some(pod)) = (&event.subject, &event.pod)
            && container.id.as_str().starts_with(typed)
        {
            found.insert(container.id.as_str(), pod);
        }
    }
    let mut ids = found.iter();
    match (ids.next(), ids.len()) {
        (None, _) => Ok(None),
        (Some((id, pod)), 0) => Ok(Some(Subject {
            pods: PodMatch::Uid(pod.uid.clone()),
            container: Some((*id).to_owned()),
            newest: Some((*pod).clone()),
        })),
        (Some(_), more) => {
            let each = found.iter().map(|(id, pod)| format!("{id} of {pod}"));
            anyhow::bail!(
                "{} matches {} containers: {}. Type more of it",
                clean(typed),
                more + 1,
                list(each)
            )
        }
    }
}

/// The newest pod of each name.
fn by_name(pods: Vec<HistoryPod>) -> BTreeMap<String, HistoryPod> {
    let mut names: BTreeMap<String, HistoryPod> = BTreeMap::new();
    for pod in pods {
        match names.get(&full_name(&pod)) {
            Some(known) if known.first > pod.first => {}
            _ => drop(names.insert(full_name(&pod), pod)),
        }
    }
    names
}

fn of_name(pod: &HistoryPod) -> Subject {
    Subject {
        pods: PodMatch::Name {
            namespace: Some(pod.namespace.clone()),
            name: pod.name.clone(),
        },
        container: None,
        newest: Some(pod_ref(pod)),
    }
}

fn of_one_uid(pod: &HistoryPod) -> Subject {
    Subject {
        pods: PodMatch::Uid(pod.uid.as_str().into()),
        container: None,
        newest: Some(pod_ref(pod)),
    }
}

fn pod_ref(pod: &HistoryPod) -> PodRef {
    PodRef {
        uid: pod.uid.as_str().into(),
        namespace: pod.namespace.as_str().into(),
        name: pod.name.as_str().into(),
    }
}

fn full_name(pod: &HistoryPod) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

/// Some of the names.
fn list(names: impl ExactSizeIterator<Item = impl AsRef<str>>) -> String {
    let more = if names.len() > OFFERED { ", …" } else { "" };
    let some: Vec<_> = names.take(OFFERED).map(|name| clean(name.as_ref())).collect();
    format!("{}{more}", some.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(namespace: &str, name: &str, uid: &str, first: i64) -> HistoryPod {
        HistoryPod {
            uid: uid.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            labels: BTreeMap::new(),
            first: jiff::Timestamp::from_second(first).unwrap(),
        }
    }

    /// A pod of a `StatefulSet` comes back under its name.
    #[test]
    fn several_uids_of_one_name_are_one_pod() {
        let pods = vec![
            known("a", "web-0", "u1", 5),
            known("a", "web-0", "u2", 9),
            known("a", "web-0", "u0", 1),
        ];
        let subject = only_name("web-0", pods).unwrap().unwrap();
        assert_eq!(subject.newest.unwrap().uid.as_str(), "u2");
        assert_eq!(subject.pods, PodMatch::parse("a/web-0"));
        assert_eq!(only_name("web-0", vec![]).unwrap(), None);
    }

    #[test]
    fn two_names_are_an_error_that_says_what_to_type() {
        let pods = || vec![known("a", "web", "u1", 5), known("b", "web", "u2", 9)];
        assert_eq!(
            only_name("web", pods()).unwrap_err().to_string(),
            "2 pods are called web: a/web, b/web. Add the namespace, as in a/web"
        );
        assert_eq!(
            only_beginning("we", "we", pods()).unwrap_err().to_string(),
            "we matches 2 pods: a/web, b/web. Type more of it"
        );
        let many = (0..20).map(|n| known("a", &format!("web-{n}"), "u", 5)).collect();
        let words = only_beginning("web", "web", many).unwrap_err().to_string();
        assert!(words.ends_with("a/web-15, …. Type more of it"), "{words}");
    }

    #[test]
    fn the_beginning_of_a_uid_means_that_uid() {
        let subject = only_beginning("8f3c", "8f3c", vec![known("a", "web", "8f3c-1", 5)]).unwrap();
        assert_eq!(subject.unwrap().pods, PodMatch::Uid("8f3c-1".into()));
        let subject = only_beginning("we", "we", vec![known("a", "web", "8f3c-1", 5)]).unwrap();
        assert_eq!(subject.unwrap().pods, PodMatch::parse("a/web"));
    }
}
