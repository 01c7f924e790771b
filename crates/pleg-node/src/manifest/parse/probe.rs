//! Reads probes and hooks.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::names;
use super::super::read::{Field, Object};
use super::super::tree::Tree;
use super::super::{Hook, HttpGet, Probe, ProbeHandler, ProbeKind};

/// Reads a probe. `ports` are those of the container, by name.
pub(super) fn read(field: &Field<'_>, kind: ProbeKind, ports: &BTreeMap<String, u16>) -> Option<Probe> {
    field.object(&[], |probe| {
        let handler = handler(probe, ports);
        let mut seconds = |name, least, default| {
            let value = probe.get(name).and_then(|f| f.int(least..=i64::from(i32::MAX)));
            Duration::from_secs(value.map_or(default, i64::unsigned_abs))
        };
        let (initial_delay, period, timeout) = (
            seconds("initialDelaySeconds", 0, 0),
            seconds("periodSeconds", 1, 10),
            seconds("timeoutSeconds", 1, 1),
        );
        let most = if kind == ProbeKind::Readiness {
            i64::from(i32::MAX)
        } else {
            1
        };
        let mut count = |name, most, default: u32| {
            let value = probe.get(name).and_then(|f| f.int(1..=most));
            value.and_then(|n| u32::try_from(n).ok()).unwrap_or(default)
        };
        let success_threshold = count("successThreshold", most, 1);
        let failure_threshold = count("failureThreshold", i64::from(i32::MAX), 3);
        let grace = probe.get("terminationGracePeriodSeconds");
        if let (Some(grace), ProbeKind::Readiness) = (&grace, kind) {
            grace.refuse("a readiness probe does not terminate the container, so it has no grace period");
        }
        Probe {
            handler: handler.unwrap_or(ProbeHandler::Exec(Vec::new())),
            initial_delay,
            period,
            timeout,
            success_threshold,
            failure_threshold,
            termination_grace: grace
                .and_then(|f| f.int(1..=i64::from(i32::MAX)))
                .map(|s| Duration::from_secs(s.unsigned_abs())),
        }
    })
}

/// The handler of a probe: exactly one.
fn handler(probe: &mut Object<'_>, ports: &BTreeMap<String, u16>) -> Option<ProbeHandler> {
    let mut ways = Vec::new();
    if let Some(exec) = probe.get("exec") {
        ways.push(command(&exec).map(ProbeHandler::Exec));
    }
    if let Some(http) = probe.get("httpGet") {
        ways.push(http_get(&http, ports).map(ProbeHandler::Http));
    }
    if let Some(tcp) = probe.get("tcpSocket") {
        let tcp = tcp.object(&[], |tcp| ProbeHandler::Tcp {
            host: host(tcp),
            port: port(tcp, ports),
        });
        ways.push(tcp);
    }
    if let Some(grpc) = probe.get("grpc") {
        let grpc = grpc.object(&["mode"], |grpc| {
            let port = grpc
                .need("port")
                .and_then(|f| f.int(1..=65_535))
                .and_then(|n| u16::try_from(n).ok());
            let service = grpc
                .get("service")
                .and_then(|f| f.text())
                .unwrap_or_default()
                .to_owned();
            ProbeHandler::Grpc {
                port: port.unwrap_or_default(),
                service,
            }
        });
        ways.push(grpc);
    }
    if ways.len() != 1 {
        probe.refuse("exactly one of exec, httpGet, tcpSocket and grpc must be set");
    }
    ways.pop()?
}

/// Reads a hook of `lifecycle`. `ports` as with probes.
pub(super) fn read_hook(field: &Field<'_>, ports: &BTreeMap<String, u16>) -> Option<Hook> {
    field.object(&["tcpSocket"], |hook| {
        let mut ways = Vec::new();
        if let Some(exec) = hook.get("exec") {
            ways.push(command(&exec).map(Hook::Exec));
        }
        if let Some(http) = hook.get("httpGet") {
            ways.push(http_get(&http, ports).map(Hook::Http));
        }
        if let Some(sleep) = hook.get("sleep") {
            let seconds = sleep.object(&[], |sleep| sleep.need("seconds").and_then(|f| f.int(0..=86_400)));
            ways.push(
                seconds
                    .flatten()
                    .map(|s| Hook::Sleep(Duration::from_secs(s.unsigned_abs()))),
            );
        }
        if ways.len() != 1 {
            hook.refuse("exactly one of exec, httpGet and sleep must be set");
        }
        ways.pop()?
    })?
}

fn command(field: &Field<'_>) -> Option<Vec<String>> {
    field.object(&[], |exec| {
        let command = exec.need("command").map(|f| f.texts()).unwrap_or_default();
        if command.is_empty() {
            exec.refuse_field("command", "must contain a command");
        }
        command
    })
}

fn http_get(field: &Field<'_>, ports: &BTreeMap<String, u16>) -> Option<HttpGet> {
    field.object(&[], |get| {
        let path = get.get("path").and_then(|f| f.checked(names::request_target));
        let tls = get
            .get("scheme")
            .and_then(|f| f.one_of(&[("HTTP", false), ("HTTPS", true)]));
        let headers = get.get("httpHeaders").map(|f| f.list(header)).unwrap_or_default();
        HttpGet {
            tls: tls.unwrap_or_default(),
            host: host(get),
            port: port(get, ports),
            path: path.map_or_else(
                || "/".to_owned(),
                |path| {
                    if path.starts_with('/') {
                        path
                    } else {
                        format!("/{path}")
                    }
                },
            ),
            headers,
        }
    })
}

fn header(field: &Field<'_>) -> Option<(String, String)> {
    field.object(&[], |header| {
        let name = header.need("name").and_then(|f| f.checked(names::header_name));
        let value = header.get("value").and_then(|f| f.checked(names::header_value));
        (name.unwrap_or_default(), value.unwrap_or_default())
    })
}

/// An address or a name; it is not resolved here.
fn host(object: &mut Object<'_>) -> Option<String> {
    let check = |text: &str| match text.parse::<std::net::IpAddr>() {
        Ok(_) => Ok(()),
        Err(_) => names::subdomain(text),
    };
    let host = object.get("host").and_then(|f| f.checked(check));
    host.filter(|host| !host.is_empty())
}

/// A port, by number or by name.
fn port(object: &mut Object<'_>, ports: &BTreeMap<String, u16>) -> u16 {
    let Some(field) = object.need("port") else {
        return 0;
    };
    if let Tree::Text(name) = field.tree {
        let port = ports.get(name.as_str()).copied();
        if port.is_none() {
            field.refuse(format!("the container has no port named {}", names::quoted(name)));
        }
        return port.unwrap_or_default();
    }
    let port = field.int(1..=65_535).and_then(|port| u16::try_from(port).ok());
    port.unwrap_or_default()
}
