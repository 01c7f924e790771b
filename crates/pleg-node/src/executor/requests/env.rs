//! The environment of a container, and the expansion of `$(NAME)`.
//!
//! As in the kubelet: variables for services first, then `envFrom`, then `env`, each replacing those of the same name. `$(NAME)` in a value
//! refers to what is set by then; in commands, arguments and `subPathExpr`, to the whole.

use std::net::IpAddr;

use super::{NodeConfig, fields};
use crate::executor::objects::{ObjectData, Objects, describe};
use crate::manifest::{Container, EnvValue, KeyRef, ObjectKind, Pod};

/// Why a container has no environment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnvError {
    /// A config map or secret does not exist.
    #[error("{0} not found")]
    NoObject(String),
    /// It has no such entry.
    #[error("{object} has no key {key}, which variable {variable} refers to")]
    NoKey {
        /// The object.
        object: String,
        /// The key.
        key: String,
        /// The variable.
        variable: String,
    },
    /// A variable refers to a container that the pod does not have.
    #[error("variable {variable} refers to container {container}, which the pod does not have")]
    NoContainer {
        /// The variable.
        variable: String,
        /// The container.
        container: String,
    },
}

/// The variables of a container, in order. Names are unique.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment(Vec<(String, String)>);

impl<'a> FromIterator<(&'a str, &'a str)> for Environment {
    fn from_iter<T: IntoIterator<Item = (&'a str, &'a str)>>(pairs: T) -> Self {
        let mut environment = Self::default();
        for (name, value) in pairs {
            environment.set(name, value.to_owned());
        }
        environment
    }
}

impl Environment {
    /// The environment of a container. `ips` are those of the pod.
    pub fn of(
        node: &NodeConfig,
        pod: &Pod,
        container: &Container,
        ips: &[IpAddr],
        objects: &Objects,
    ) -> Result<Self, EnvError> {
        let ips = if pod.spec.host_network { &node.ips } else { ips };
        let mut environment = Self::default();
        for (name, value) in objects.service_variables() {
            environment.set(name, value.clone());
        }
        for from in &container.env_from {
            let object = &from.source;
            let data = object_data(pod, objects, object.kind, &object.name, object.optional)?;
            for (key, value) in data.into_iter().flatten() {
                environment.set(&format!("{}{key}", from.prefix), text(value));
            }
        }
        for var in &container.env {
            let value = match &var.value {
                EnvValue::Text(text) => Some(environment.expand(text)),
                EnvValue::Field(field) => Some(fields::field(node, pod, field, ips)),
                EnvValue::Resource(field) => {
                    let missing = || EnvError::NoContainer {
                        variable: var.name.clone(),
                        container: field.container.clone().unwrap_or_default(),
                    };
                    Some(fields::resource(node, pod, Some(container), field).ok_or_else(missing)?)
                }
                EnvValue::ConfigMapKey(key) => entry(pod, objects, ObjectKind::ConfigMap, key, &var.name)?,
                EnvValue::SecretKey(key) => entry(pod, objects, ObjectKind::Secret, key, &var.name)?,
            };
            if let Some(value) = value {
                environment.set(&var.name, value);
            }
        }
        Ok(environment)
    }

    fn set(&mut self, name: &str, value: String) {
        self.0.retain(|(other, _)| *other != *name);
        self.0.push((name.to_owned(), value));
    }

    fn get(&self, name: &str) -> Option<&str> {
        let found = self.0.iter().find(|(other, _)| *other == *name);
        found.map(|(_, value)| value.as_str())
    }

    /// Names and values, in order.
    pub fn into_pairs(self) -> Vec<(String, String)> {
        self.0
    }

    /// Replaces `$(NAME)` by the value of the variable. An unknown one is left as it is, and `$$` becomes `$`.
    pub fn expand(&self, text: &str) -> String {
        expand(text, |name| self.get(name)).0
    }

    /// The same; an unknown variable is an error, and its name is returned.
    pub(crate) fn expand_all(&self, text: &str) -> Result<String, String> {
        match expand(text, |name| self.get(name)) {
            (_, Some(unknown)) => Err(unknown),
            (expanded, None) => Ok(expanded),
        }
    }
}

/// The entries of an object; none if it is optional and does not exist.
fn object_data<'a>(
    pod: &Pod,
    objects: &'a Objects,
    kind: ObjectKind,
    name: &str,
    optional: bool,
) -> Result<Option<&'a ObjectData>, EnvError> {
    match objects.data(kind, name) {
        None if !optional => Err(EnvError::NoObject(describe(&pod.id.namespace, kind, name))),
        data => Ok(data),
    }
}

/// An entry of an object; none if it is optional and does not exist.
fn entry(
    pod: &Pod,
    objects: &Objects,
    kind: ObjectKind,
    key: &KeyRef,
    variable: &str,
) -> Result<Option<String>, EnvError> {
    let data = object_data(pod, objects, kind, &key.name, key.optional)?;
    match data.and_then(|data| data.get(&key.key)) {
        None if !key.optional => Err(EnvError::NoKey {
            object: describe(&pod.id.namespace, kind, &key.name),
            key: key.key.clone(),
            variable: variable.to_owned(),
        }),
        value => Ok(value.map(|value| text(value))),
    }
}

/// A value as a text. An environment is no place for other bytes, of which the kernel would not take the zero.
fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).replace('\0', "")
}

/// Replaces `$(NAME)`. Also returns the first name that is unknown.
fn expand<'a>(text: &str, value: impl Fn(&str) -> Option<&'a str>) -> (String, Option<String>) {
    let mut expanded = String::with_capacity(text.len());
    let mut unknown = None;
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        expanded.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            expanded.push('$');
            rest = after;
            continue;
        }
        let name = rest.strip_prefix('(').and_then(|after| after.split_once(')'));
        let Some((name, after)) = name else {
            expanded.push('$');
            continue;
        };
        if let Some(value) = value(name) {
            expanded.push_str(value);
        } else {
            expanded.extend(["$(", name, ")"]);
            unknown.get_or_insert_with(|| name.to_owned());
        }
        rest = after;
    }
    expanded.push_str(rest);
    (expanded, unknown)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::executor::objects::for_environment;
    use crate::executor::objects::testing::InMemory;
    use crate::manifest::{ContainerResource, EnvFrom, EnvVar, ObjectRef, PodField, Quantity, ResourceField};
    use crate::testing::{node, pod};

    #[test]
    fn the_table() {
        let environment = Environment::from_iter([("A", "1"), ("B_2", "$(A)")]);
        for (text, wanted) in [
            ("", ""),
            ("plain", "plain"),
            ("$(A)", "1"),
            ("x$(A)y$(A)", "x1y1"),
            // Values are not expanded again.
            ("$(B_2)", "$(A)"),
            ("$(NO)", "$(NO)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$", "$"),
            ("$$", "$"),
            ("a$b", "a$b"),
            ("$(A", "$(A"),
            ("$()", "$()"),
            ("ä$(A)ö$", "ä1ö$"),
        ] {
            assert_eq!(environment.expand(text), wanted, "{text}");
        }
        assert_eq!(environment.expand_all("$(NO)$(A)$(NO2)"), Err("NO".to_owned()));
        assert_eq!(environment.expand_all("$(A)$$(NO)"), Ok("1$(NO)".to_owned()));
    }

    fn from(kind: ObjectKind, name: &str, prefix: &str, optional: bool) -> EnvFrom {
        EnvFrom {
            prefix: prefix.to_owned(),
            source: ObjectRef {
                kind,
                name: name.to_owned(),
                optional,
            },
        }
    }

    fn key(name: &str, key: &str, optional: bool) -> KeyRef {
        KeyRef {
            name: name.to_owned(),
            key: key.to_owned(),
            optional,
        }
    }

    /// `NAME=value` of each variable, or the error.
    async fn read(env_from: Vec<EnvFrom>, env: Vec<(&str, EnvValue)>) -> Result<Vec<String>, String> {
        let api = InMemory {
            services: [
                ("KUBERNETES_SERVICE_HOST", "10.0.0.1"),
                ("WEB_SERVICE_HOST", "10.0.0.2"),
            ]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
            ..InMemory::default()
        };
        api.set(ObjectKind::ConfigMap, "map", &[("a", "1"), ("b", "2")]);
        api.set(ObjectKind::Secret, "secret", &[("b", "hidden")]);
        let mut pod = Pod::clone(&pod(
            "containers: [{name: a, image: i, resources: {limits: {memory: 64Mi}}}]",
        ));
        pod.annotations.insert("note".to_owned(), "x".to_owned());
        pod.spec.containers[0].env_from = env_from;
        let var = |(name, value): (&str, EnvValue)| EnvVar {
            name: name.to_owned(),
            value,
        };
        pod.spec.containers[0].env = env.into_iter().map(var).collect();
        let container = &pod.spec.containers[0];
        let objects = for_environment(&api, &pod, container).await.unwrap();
        let ips = ["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()];
        let made = Environment::of(&node(Path::new("/x")), &pod, container, &ips, &objects);
        let pairs = made.map_err(|error| error.to_string())?.into_pairs();
        let mut lines: Vec<String> = pairs
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        lines.retain(|line| line != "KUBERNETES_SERVICE_HOST=10.0.0.1");
        Ok(lines)
    }

    #[tokio::test]
    async fn later_variables_replace_earlier_ones() {
        use ObjectKind::{ConfigMap, Secret};
        let text = |text: &str| EnvValue::Text(text.to_owned());
        let found = read(
            vec![
                from(ConfigMap, "map", "", false),
                from(Secret, "secret", "", false),
                from(ConfigMap, "map", "P_", false),
                from(ConfigMap, "none", "", true),
            ],
            vec![
                ("EARLY", text("$(LATE) $(a) $(P_b) $(KUBERNETES_SERVICE_HOST)")),
                ("a", text("own")),
                ("LATE", text("$(a)")),
            ],
        );
        let wanted = [
            "b=hidden",
            "P_a=1",
            "P_b=2",
            "EARLY=$(LATE) 1 2 10.0.0.1",
            "a=own",
            "LATE=own",
        ];
        assert_eq!(found.await.unwrap(), wanted);
    }

    #[tokio::test]
    async fn values_come_from_the_pod_and_from_objects() {
        let memory = ResourceField {
            container: None,
            resource: ContainerResource::MemoryLimit,
            divisor: Quantity::parse("1Mi").unwrap(),
        };
        let found = read(
            Vec::new(),
            vec![
                ("MEMORY", EnvValue::Resource(memory)),
                ("NOTE", EnvValue::Field(PodField::Annotation("note".to_owned()))),
                ("IPS", EnvValue::Field(PodField::PodIps)),
                ("HOST", EnvValue::Field(PodField::HostIp)),
                ("MAP", EnvValue::ConfigMapKey(key("map", "a", false))),
                ("SECRET", EnvValue::SecretKey(key("secret", "b", false))),
                ("LEFT_OUT", EnvValue::SecretKey(key("secret", "none", true))),
                ("LEFT_OUT_TOO", EnvValue::ConfigMapKey(key("none", "a", true))),
            ],
        );
        let wanted = [
            "MEMORY=64",
            "NOTE=x",
            "IPS=10.0.0.7,fd00::7",
            "HOST=192.0.2.1",
            "MAP=1",
            "SECRET=hidden",
        ];
        assert_eq!(found.await.unwrap(), wanted);
    }

    #[tokio::test]
    async fn what_is_missing_is_an_error() {
        let one = |value| read(Vec::new(), vec![("X", value)]);
        let error = one(EnvValue::ConfigMapKey(key("none", "a", false))).await.unwrap_err();
        assert_eq!(error, "configmap default/none not found");
        let error = one(EnvValue::SecretKey(key("secret", "z", false))).await.unwrap_err();
        assert_eq!(error, "secret default/secret has no key z, which variable X refers to");
        let whole = read(vec![from(ObjectKind::Secret, "none", "", false)], Vec::new());
        assert_eq!(whole.await.unwrap_err(), "secret default/none not found");
    }
}
