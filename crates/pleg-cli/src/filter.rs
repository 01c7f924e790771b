//! Filters for events and pods, shared by the command line, the HTTP API and its client.

use std::fmt;

use pleg::{Event, EventType, PodRef};

/// Maximum length of a name in Kubernetes.
const NAME_LIMIT: usize = 253;

/// A pod by name; the namespace is optional.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PodName {
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
}

impl PodName {
    /// Parses `name` or `namespace/name`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, text),
        };
        let bad = |part: &str| part.is_empty() || part.len() > NAME_LIMIT || part.contains('/');
        if bad(name) || namespace.is_some_and(bad) {
            return Err("a pod's name, with or without its namespace: NAME or NAMESPACE/NAME".to_owned());
        }
        Ok(Self {
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        })
    }

    pub(crate) fn matches(&self, namespace: &str, name: &str) -> bool {
        self.name == name && self.namespace.as_deref().is_none_or(|own| own == namespace)
    }
}

impl fmt::Display for PodName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)
    }
}

/// Conditions that an event must meet; an empty one is met by all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    pub(crate) types: Vec<EventType>,
    pub(crate) pod: Option<PodName>,
    pub(crate) namespace: Option<String>,
}

impl Filter {
    pub(crate) fn matches(&self, event: &Event) -> bool {
        if !self.matches_type(event.kind) {
            return false;
        }
        match &event.pod {
            Some(pod) => self.matches_pod(pod),
            // Events about the generator's health belong to no pod.
            None => self.pod.is_none() && self.namespace.is_none(),
        }
    }

    /// `ProcessExited` comes before `ContainerDied`, only on request: most readers count deaths.
    fn matches_type(&self, kind: EventType) -> bool {
        if self.types.is_empty() {
            kind != EventType::ProcessExited
        } else {
            self.types.contains(&kind)
        }
    }

    pub(crate) fn matches_pod(&self, pod: &PodRef) -> bool {
        self.namespace
            .as_deref()
            .is_none_or(|namespace| namespace == &*pod.namespace)
            && self
                .pod
                .as_ref()
                .is_none_or(|name| name.matches(&pod.namespace, &pod.name))
    }

    /// The filter as a query of the HTTP API.
    pub(crate) fn query(&self) -> Vec<(&'static str, String)> {
        let mut query = Vec::new();
        if !self.types.is_empty() {
            let names: Vec<_> = self.types.iter().map(|kind| kind.name()).collect();
            query.push(("type", names.join(",")));
        }
        query.extend(self.pod.as_ref().map(|pod| ("pod", pod.to_string())));
        query.extend(self.namespace.clone().map(|namespace| ("namespace", namespace)));
        query
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_with_and_without_namespace() {
        assert_eq!(PodName::parse("web").unwrap().namespace, None);
        let full = PodName::parse("a/web").unwrap();
        assert!(full.matches("a", "web") && !full.matches("b", "web") && !full.matches("a", "web2"));
        for bad in ["", "/", "a/", "/b", "a/b/c"] {
            assert!(PodName::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn exits_of_processes_are_only_for_those_who_ask() {
        let of = |types: &[EventType]| Filter {
            types: types.to_vec(),
            ..Filter::default()
        };
        assert!(of(&[]).matches_type(EventType::ContainerDied) && !of(&[]).matches_type(EventType::ProcessExited));
        assert!(of(&[EventType::ProcessExited]).matches_type(EventType::ProcessExited));
    }

    #[test]
    fn a_filter_is_an_and() {
        let pod = PodRef {
            uid: "u".into(),
            namespace: "a".into(),
            name: "web".into(),
        };
        let filter = |namespace: Option<&str>, pod: Option<&str>| Filter {
            namespace: namespace.map(Into::into),
            pod: pod.map(|pod| PodName::parse(pod).unwrap()),
            types: vec![],
        };
        assert!(filter(None, None).matches_pod(&pod));
        assert!(filter(Some("a"), Some("web")).matches_pod(&pod));
        assert!(!filter(Some("b"), Some("web")).matches_pod(&pod));
        assert!(!filter(None, Some("b/web")).matches_pod(&pod));
    }
}
