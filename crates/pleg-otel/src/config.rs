//! The `OTEL_*` variables. Pure: callers pass them.
//!
//! Without `OTEL_EXPORTER_OTLP_ENDPOINT` (or that of a signal), `OTEL_TRACES_EXPORTER=otlp` or `OTEL_LOGS_EXPORTER=otlp`, nothing is sent: unlike
//! in the specification, the default is off. What is set and not understood is an error: data that silently goes nowhere helps nobody.

use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, HeaderValue, Uri};
use percent_encoding::percent_decode_str;

/// Where OTLP goes by default.
const DEFAULT_ENDPOINT: &str = "http://localhost:4318";
/// Most attributes of the resource, and most headers.
const MOST_PAIRS: usize = 64;

/// A variable that is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {problem}")]
pub struct ConfigError {
    variable: String,
    problem: String,
}

impl ConfigError {
    pub(crate) fn new(variable: &str, problem: &str) -> Self {
        Self {
            variable: variable.to_owned(),
            problem: problem.to_owned(),
        }
    }
}

/// What is sent, and where.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Config {
    pub(crate) traces: Option<SignalConfig>,
    pub(crate) logs: Option<SignalConfig>,
    pub(crate) resource: Vec<(String, String)>,
    pub(crate) sampler: Sampler,
}

/// Where one signal goes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SignalConfig {
    pub(crate) url: Uri,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) timeout: Duration,
    /// The CA of the collector, in PEM; none: those of this machine.
    pub(crate) ca: Option<PathBuf>,
    /// From one batch to the next.
    pub(crate) delay: Duration,
    /// Items that may wait.
    pub(crate) queue: usize,
    /// Items of one request.
    pub(crate) batch: usize,
}

/// Which traces are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Sampler(f64);

impl Sampler {
    /// Whether a new trace is.
    pub(crate) fn samples(self) -> bool {
        self.0 >= 1.0 || fastrand::f64() < self.0
    }
}

/// A signal, by the names that it has in variables.
struct Signal {
    name: &'static str,
    path: &'static str,
    batch: &'static str,
    delay: Duration,
}

const TRACES: Signal = Signal {
    name: "TRACES",
    path: "v1/traces",
    batch: "BSP",
    delay: Duration::from_secs(5),
};
const LOGS: Signal = Signal {
    name: "LOGS",
    path: "v1/logs",
    batch: "BLRP",
    delay: Duration::from_secs(1),
};

/// The variables. An empty one is as one that is not set.
struct Variables<F>(F);

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    fn get(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|value| !value.trim().is_empty())
    }

    /// Of this signal, else of all; with the name that it was found under.
    fn of_signal(&self, signal: &Signal, what: &str) -> Option<(String, String)> {
        let names = [
            format!("OTEL_EXPORTER_OTLP_{}_{what}", signal.name),
            format!("OTEL_EXPORTER_OTLP_{what}"),
        ];
        names.into_iter().find_map(|name| Some((self.get(&name)?, name)))
    }

    fn number(&self, name: &str, default: usize, most: usize) -> Result<usize, ConfigError> {
        let Some(text) = self.get(name) else { return Ok(default) };
        match text.trim().parse() {
            Ok(number) if (1..=most).contains(&number) => Ok(number),
            _ => Err(ConfigError::new(name, &format!("expected a number from 1 to {most}"))),
        }
    }
}

impl Config {
    /// What the variables ask for; none if they ask for nothing.
    pub(crate) fn from_env(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, ConfigError> {
        let variables = Variables(variable);
        if variables
            .get("OTEL_SDK_DISABLED")
            .is_some_and(|value| value.eq_ignore_ascii_case("true"))
        {
            return Ok(None);
        }
        let (traces, logs) = (signal(&variables, &TRACES)?, signal(&variables, &LOGS)?);
        if traces.is_none() && logs.is_none() {
            return Ok(None);
        }
        Ok(Some(Self {
            traces,
            logs,
            resource: resource(&variables)?,
            sampler: sampler(&variables)?,
        }))
    }
}

fn signal<F: Fn(&str) -> Option<String>>(
    variables: &Variables<F>,
    signal: &Signal,
) -> Result<Option<SignalConfig>, ConfigError> {
    let exporter = format!("OTEL_{}_EXPORTER", signal.name);
    let endpoint = variables.of_signal(signal, "ENDPOINT");
    match variables.get(&exporter).as_deref() {
        Some("none") => return Ok(None),
        Some("otlp") => {}
        Some(_) => return Err(ConfigError::new(&exporter, "expected otlp or none")),
        None if endpoint.is_none() => return Ok(None),
        None => {}
    }
    if let Some((protocol, name)) = variables.of_signal(signal, "PROTOCOL")
        && protocol != "http/protobuf"
    {
        return Err(ConfigError::new(
            &name,
            "expected http/protobuf, which a collector takes at port 4318",
        ));
    }
    let (endpoint, name) =
        endpoint.unwrap_or_else(|| (DEFAULT_ENDPOINT.to_owned(), "OTEL_EXPORTER_OTLP_ENDPOINT".to_owned()));
    // The endpoint of a signal is used as it is; that of all is where their paths begin.
    let url = if name == "OTEL_EXPORTER_OTLP_ENDPOINT" {
        format!("{}/{}", endpoint.trim_end_matches('/'), signal.path)
    } else {
        endpoint
    };
    let headers = variables.of_signal(signal, "HEADERS");
    let headers = headers.map(|(text, name)| parse_headers(&name, &text)).transpose()?;
    let (batch, queue) = (
        format!("OTEL_{}_MAX_EXPORT_BATCH_SIZE", signal.batch),
        format!("OTEL_{}_MAX_QUEUE_SIZE", signal.batch),
    );
    let delay = format!("OTEL_{}_SCHEDULE_DELAY", signal.batch);
    let millis = |default: Duration| usize::try_from(default.as_millis()).unwrap_or(usize::MAX);
    let delay = variables.number(&delay, millis(signal.delay), 3_600_000)?;
    let timeout = match variables.of_signal(signal, "TIMEOUT") {
        Some((_, name)) => variables.number(&name, 10_000, 600_000)?,
        None => 10_000,
    };
    Ok(Some(SignalConfig {
        url: parse_url(&name, &url)?,
        headers: headers.unwrap_or_default(),
        timeout: Duration::from_millis(timeout as u64),
        ca: variables.of_signal(signal, "CERTIFICATE").map(|(path, _)| path.into()),
        delay: Duration::from_millis(delay as u64),
        queue: variables.number(&queue, 2048, 65_536)?,
        batch: variables.number(&batch, 512, 8192)?,
    }))
}

fn parse_url(name: &str, url: &str) -> Result<Uri, ConfigError> {
    let parsed: Option<Uri> = url.parse().ok();
    let parsed = parsed.filter(|url| matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some());
    parsed.ok_or_else(|| ConfigError::new(name, "expected a URL, such as http://localhost:4318"))
}

/// `a=1,b=2`, percent-encoded.
fn pairs(name: &str, text: &str) -> Result<Vec<(String, String)>, ConfigError> {
    let problem = || ConfigError::new(name, "expected pairs, such as a=1,b=2, with at most 64 of them");
    let parts: Vec<&str> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
    if parts.len() > MOST_PAIRS {
        return Err(problem());
    }
    let pair = |part: &str| {
        let (key, value) = part.split_once('=')?;
        let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
        let key = key.trim();
        (!key.is_empty()).then(|| (key.to_owned(), value.into_owned()))
    };
    parts.into_iter().map(|part| pair(part).ok_or_else(problem)).collect()
}

fn parse_headers(name: &str, text: &str) -> Result<Vec<(HeaderName, HeaderValue)>, ConfigError> {
    let header = |(key, value): (String, String)| {
        let mut value = HeaderValue::from_str(&value).ok()?;
        // It may be a password.
        value.set_sensitive(true);
        Some((HeaderName::from_bytes(key.as_bytes()).ok()?, value))
    };
    let problem = || ConfigError::new(name, "expected names and values of HTTP headers");
    pairs(name, text)?
        .into_iter()
        .map(|pair| header(pair).ok_or_else(problem))
        .collect()
}

fn resource<F: Fn(&str) -> Option<String>>(variables: &Variables<F>) -> Result<Vec<(String, String)>, ConfigError> {
    let name = "OTEL_RESOURCE_ATTRIBUTES";
    let mut all = variables
        .get(name)
        .map(|text| pairs(name, &text))
        .transpose()?
        .unwrap_or_default();
    let mut set = |key: &str, value: Option<String>, replace: bool| {
        let Some(value) = value else { return };
        let known = all.iter().position(|(known, _)| known == key);
        match known {
            Some(at) if replace => all[at].1 = value,
            Some(_) => {}
            None => all.push((key.to_owned(), value)),
        }
    };
    set("service.name", variables.get("OTEL_SERVICE_NAME"), true);
    set("service.name", Some("pleg".to_owned()), false);
    set("service.version", Some(env!("CARGO_PKG_VERSION").to_owned()), false);
    // As a DaemonSet gives it.
    set("k8s.node.name", variables.get("NODE_NAME"), false);
    Ok(all)
}

fn sampler<F: Fn(&str) -> Option<String>>(variables: &Variables<F>) -> Result<Sampler, ConfigError> {
    let name = "OTEL_TRACES_SAMPLER";
    let Some(sampler) = variables.get(name) else {
        return Ok(Sampler(1.0));
    };
    // Nobody calls us with a trace of theirs: what is based on a parent is based on none.
    match sampler.trim_start_matches("parentbased_") {
        "always_on" => Ok(Sampler(1.0)),
        "always_off" => Ok(Sampler(0.0)),
        "traceidratio" => {
            let name = "OTEL_TRACES_SAMPLER_ARG";
            let ratio = variables.get(name).map_or(Ok(1.0), |text| text.trim().parse());
            let ratio = ratio.ok().filter(|ratio: &f64| (0.0..=1.0).contains(ratio));
            ratio
                .map(Sampler)
                .ok_or_else(|| ConfigError::new(name, "expected a number from 0 to 1"))
        }
        _ => Err(ConfigError::new(
            name,
            "expected always_on, always_off or traceidratio, also with parentbased_",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Config>, ConfigError> {
        Config::from_env(|name| {
            let found = variables.iter().find(|(key, _)| *key == name);
            found.map(|(_, value)| (*value).to_owned())
        })
    }

    fn urls(variables: &[(&str, &str)]) -> [String; 2] {
        let config = read(variables).unwrap();
        let url = |signal: Option<SignalConfig>| signal.map_or_else(String::new, |signal| signal.url.to_string());
        config.map_or_else(Default::default, |config| [url(config.traces), url(config.logs)])
    }

    #[test]
    fn it_is_off_unless_it_is_asked_for() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318/");
        let both = ["http://c:4318/v1/traces".to_owned(), "http://c:4318/v1/logs".to_owned()];
        for (variables, expected) in [
            (&[][..], [String::new(), String::new()]),
            (&[("OTEL_SERVICE_NAME", "x")], Default::default()),
            (&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")], Default::default()),
            (&[endpoint, ("OTEL_SDK_DISABLED", "TRUE")], Default::default()),
            (&[endpoint], both.clone()),
            (
                &[endpoint, ("OTEL_LOGS_EXPORTER", "none")],
                [both[0].clone(), String::new()],
            ),
            (
                &[("OTEL_LOGS_EXPORTER", "otlp")],
                [String::new(), "http://localhost:4318/v1/logs".to_owned()],
            ),
            (
                &[endpoint, ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://t/x")],
                ["https://t/x".to_owned(), both[1].clone()],
            ),
        ] {
            assert_eq!(urls(variables), expected, "{variables:?}");
        }
    }

    #[test]
    fn the_resource_names_service_and_node() {
        let config = read(&[
            ("OTEL_TRACES_EXPORTER", "otlp"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=a, k8s.cluster.name=b%20c ,"),
            ("OTEL_SERVICE_NAME", "mine"),
            ("NODE_NAME", "n1"),
        ]);
        let resource = config.unwrap().unwrap().resource;
        let get = |key: &str| {
            resource
                .iter()
                .find(|(known, _)| known == key)
                .map(|(_, value)| value.as_str())
        };
        assert_eq!(get("service.name"), Some("mine"));
        assert_eq!(get("k8s.cluster.name"), Some("b c"));
        assert_eq!(get("k8s.node.name"), Some("n1"));
        assert!(get("service.version").is_some());
    }

    #[test]
    fn headers_and_limits_are_read() {
        let config = read(&[
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20x,a=b"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "c=d"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "250"),
            ("OTEL_BSP_SCHEDULE_DELAY", "100"),
            ("OTEL_BLRP_MAX_QUEUE_SIZE", "7"),
            ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
        ]);
        let config = config.unwrap().unwrap();
        let (traces, logs) = (config.traces.unwrap(), config.logs.unwrap());
        assert_eq!(traces.headers.len(), 1);
        assert_eq!(logs.headers[0].1.to_str().unwrap(), "Bearer x");
        assert!(!format!("{logs:?}").contains("Bearer"), "secrets are not shown");
        assert_eq!(
            (traces.timeout, traces.delay),
            (Duration::from_millis(250), Duration::from_millis(100))
        );
        assert_eq!((logs.queue, config.sampler), (7, Sampler(0.25)));
        let sampled = (0..1000).filter(|_| config.sampler.samples()).count();
        assert!((150..350).contains(&sampled), "{sampled}");
    }

    #[test]
    fn what_is_not_understood_is_named() {
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4318"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "unix:///x"),
            ("OTEL_TRACES_EXPORTER", "zipkin"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
            ("OTEL_EXPORTER_OTLP_LOGS_PROTOCOL", "http/json"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a b=c"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a=%0a"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "-1"),
            ("OTEL_RESOURCE_ATTRIBUTES", "=x"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "99999999"),
            ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
        ] {
            let variables = [
                ("OTEL_TRACES_EXPORTER", "otlp"),
                ("OTEL_LOGS_EXPORTER", "otlp"),
                (name, value),
            ];
            let variables: Vec<_> = variables.into_iter().rev().collect();
            let error = read(&variables).unwrap_err().to_string();
            assert!(error.starts_with(name), "{error}");
        }
    }
}
