//! Probes and lifecycle hooks of a container.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::Duration;

use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::super::problem::At;
use super::super::{Hook, HttpGet, Probe, ProbeHandler, ProbeKind, names};

/// The ports of a container that have names.
pub(super) type Ports = BTreeMap<String, u16>;

const MANY: i64 = i32::MAX as i64;

pub(super) fn convert(probe: &core::Probe, kind: ProbeKind, ports: &Ports, at: &At<'_>) -> Probe {
    let core::Probe {
        exec,
        failure_threshold,
        grpc,
        http_get,
        initial_delay_seconds,
        period_seconds,
        success_threshold,
        tcp_socket,
        termination_grace_period_seconds,
        timeout_seconds,
    } = probe;
    let number = |key: &str, value: Option<i32>, range: RangeInclusive<i64>, default: u32| {
        let Some(value) = value else { return default };
        at.key(key).check_range(value.into(), range);
        value.unsigned_abs()
    };
    let seconds = |key, value, least, default| Duration::from_secs(number(key, value, least..=MANY, default).into());
    let most = if kind == ProbeKind::Readiness { MANY } else { 1 };
    let termination_grace = termination_grace_period_seconds.map(|value| {
        let at = at.key("terminationGracePeriodSeconds");
        if kind == ProbeKind::Readiness {
            at.refuse("a readiness probe does not terminate the container, so it has no grace period");
        }
        at.check_range(value, 1..=MANY);
        Duration::from_secs(value.unsigned_abs())
    });
    let mut ways = Vec::new();
    ways.extend(
        exec.as_ref()
            .map(|exec| ProbeHandler::Exec(command(exec, &at.key("exec")))),
    );
    ways.extend(
        http_get
            .as_ref()
            .map(|get| ProbeHandler::Http(convert_get(get, ports, &at.key("httpGet")))),
    );
    ways.extend(tcp_socket.as_ref().map(|tcp| {
        let (
            core::TCPSocketAction {
                host: name,
                port: number,
            },
            at,
        ) = (tcp, at.key("tcpSocket"));
        ProbeHandler::Tcp {
            host: host(name.as_deref(), &at),
            port: port(number, ports, &at),
        }
    }));
    ways.extend(grpc.as_ref().map(|grpc| {
        let (core::GRPCAction { mode, port, service }, at) = (grpc, at.key("grpc"));
        at.unsupported("mode", mode.is_some());
        ProbeHandler::Grpc {
            port: port_number((*port).into(), &at.key("port")),
            service: service.clone().unwrap_or_default(),
        }
    }));
    if ways.len() != 1 {
        at.refuse("exactly one of exec, httpGet, tcpSocket and grpc must be set");
    }
    Probe {
        handler: ways.pop().unwrap_or(ProbeHandler::Exec(Vec::new())),
        initial_delay: seconds("initialDelaySeconds", *initial_delay_seconds, 0, 0),
        period: seconds("periodSeconds", *period_seconds, 1, 10),
        timeout: seconds("timeoutSeconds", *timeout_seconds, 1, 1),
        success_threshold: number("successThreshold", *success_threshold, 1..=most, 1),
        failure_threshold: number("failureThreshold", *failure_threshold, 1..=MANY, 3),
        termination_grace,
    }
}

/// A hook of `lifecycle`.
pub(super) fn convert_hook(handler: &core::LifecycleHandler, ports: &Ports, at: &At<'_>) -> Option<Hook> {
    let core::LifecycleHandler {
        exec,
        http_get,
        sleep,
        tcp_socket,
    } = handler;
    // Kubernetes accepts it and does nothing.
    at.unsupported("tcpSocket", tcp_socket.is_some());
    let mut ways = Vec::new();
    ways.extend(exec.as_ref().map(|exec| Hook::Exec(command(exec, &at.key("exec")))));
    ways.extend(
        http_get
            .as_ref()
            .map(|get| Hook::Http(convert_get(get, ports, &at.key("httpGet")))),
    );
    ways.extend(sleep.as_ref().map(|core::SleepAction { seconds }| {
        at.key("sleep").key("seconds").check_range(*seconds, 0..=86_400);
        Hook::Sleep(Duration::from_secs(seconds.unsigned_abs()))
    }));
    if ways.len() != 1 {
        at.refuse("exactly one of exec, httpGet and sleep must be set");
    }
    ways.pop()
}

fn command(exec: &core::ExecAction, at: &At<'_>) -> Vec<String> {
    let core::ExecAction { command } = exec;
    let command = command.clone().unwrap_or_default();
    if command.is_empty() {
        at.key("command").refuse("must contain a command");
    }
    command
}

fn convert_get(get: &core::HTTPGetAction, ports: &Ports, at: &At<'_>) -> HttpGet {
    let core::HTTPGetAction {
        host: name,
        http_headers,
        path,
        port: number,
        protocol,
        scheme,
    } = get;
    at.unsupported("protocol", protocol.is_some());
    let words = [("HTTP", false), ("HTTPS", true)];
    let tls = scheme
        .as_deref()
        .and_then(|scheme| at.key("scheme").one_of(scheme, &words));
    let path = path.as_deref().unwrap_or("/");
    at.key("path").check(path, names::request_target);
    HttpGet {
        tls: tls.unwrap_or_default(),
        host: host(name.as_deref(), at),
        port: port(number, ports, at),
        path: if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("/{path}")
        },
        headers: at.list("httpHeaders", http_headers.as_ref(), |header, at| {
            let core::HTTPHeader { name, value } = header;
            at.key("name").require(name, names::header_name);
            at.key("value").check(value, names::header_value);
            (name.clone(), value.clone())
        }),
    }
}

/// An address or a name; it is not resolved here.
fn host(host: Option<&str>, at: &At<'_>) -> Option<String> {
    let host = host.filter(|host| !host.is_empty())?;
    if host.parse::<std::net::IpAddr>().is_err() {
        at.key("host").check(host, names::subdomain);
    }
    Some(host.to_owned())
}

/// A port, by number or by name.
fn port(port: &IntOrString, ports: &Ports, at: &At<'_>) -> u16 {
    let at = at.key("port");
    let name = match port {
        IntOrString::Int(number) => return port_number((*number).into(), &at),
        IntOrString::String(name) => name,
    };
    if let Some(port) = ports.get(name) {
        return *port;
    }
    // As an API server, a number in quotes is a number.
    match name.parse::<u16>() {
        Ok(port) if port > 0 => port,
        _ => {
            let name = names::quoted(name);
            at.refuse(format!("the container has no port named {name}"));
            0
        }
    }
}

/// The number of a port.
pub(super) fn port_number(number: i64, at: &At<'_>) -> u16 {
    if number == 0 {
        at.refuse("required field is missing");
    } else {
        at.check_range(number, 1..=65_535);
    }
    u16::try_from(number).unwrap_or_default()
}
