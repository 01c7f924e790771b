//! The variables that containers have for a service, as in the kubelet. Pure.
//!
//! | service `web-1`, port 80 named `http` | |
//! |---|---|
//! | `WEB_1_SERVICE_HOST`, `WEB_1_SERVICE_PORT` | its address and first port |
//! | `WEB_1_SERVICE_PORT_HTTP` | each port that has a name |
//! | `WEB_1_PORT`, `WEB_1_PORT_80_TCP`, `…_PROTO`, `…_PORT`, `…_ADDR` | those that Docker had for links |

use k8s_openapi::api::core::v1::Service;

/// What variables are made of. Everything else of a service is not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServiceAddress {
    pub(super) name: String,
    ip: String,
    ports: Vec<Port>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Port {
    name: String,
    number: i32,
    protocol: String,
}

impl ServiceAddress {
    /// The address of a service; none if it has none of its own: it is headless, or the name of something elsewhere.
    pub(super) fn of(service: Service) -> Option<Self> {
        let (name, spec) = (service.metadata.name?, service.spec?);
        let ip = spec.cluster_ip.filter(|ip| !ip.is_empty() && ip != "None")?;
        let port = |port: k8s_openapi::api::core::v1::ServicePort| Port {
            name: port.name.unwrap_or_default(),
            number: port.port,
            protocol: port
                .protocol
                .filter(|protocol| !protocol.is_empty())
                .unwrap_or_else(|| "TCP".to_owned()),
        };
        let ports: Vec<Port> = spec.ports.unwrap_or_default().into_iter().map(port).collect();
        (!ports.is_empty()).then_some(Self { name, ip, ports })
    }

    /// Its variables, in order.
    pub(super) fn variables(&self) -> Vec<(String, String)> {
        let prefix = variable_name(&self.name);
        let mut all = vec![(format!("{prefix}_SERVICE_HOST"), self.ip.clone())];
        if let Some(first) = self.ports.first() {
            all.push((format!("{prefix}_SERVICE_PORT"), first.number.to_string()));
        }
        for port in self.ports.iter().filter(|port| !port.name.is_empty()) {
            let name = format!("{prefix}_SERVICE_PORT_{}", variable_name(&port.name));
            all.push((name, port.number.to_string()));
        }
        for (n, port) in self.ports.iter().enumerate() {
            let protocol = port.protocol.to_lowercase();
            let url = format!("{protocol}://{}", host_and_port(&self.ip, port.number));
            if n == 0 {
                all.push((format!("{prefix}_PORT"), url.clone()));
            }
            let port_prefix = format!("{prefix}_PORT_{}_{}", port.number, port.protocol.to_uppercase());
            all.push((format!("{port_prefix}_PROTO"), protocol));
            all.push((format!("{port_prefix}_PORT"), port.number.to_string()));
            all.push((format!("{port_prefix}_ADDR"), self.ip.clone()));
            all.push((port_prefix, url));
        }
        all
    }
}

fn variable_name(name: &str) -> String {
    name.replace('-', "_").to_uppercase()
}

fn host_and_port(ip: &str, port: i32) -> String {
    if ip.contains(':') {
        format!("[{ip}]:{port}")
    } else {
        format!("{ip}:{port}")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// `NAME=value` of each variable.
    fn variables(spec: &Value) -> Vec<String> {
        let service = json!({"metadata": {"name": "web-1", "namespace": "shop"}, "spec": spec});
        let address = ServiceAddress::of(serde_json::from_value(service).unwrap());
        let all = address.map(|address| address.variables()).unwrap_or_default();
        all.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
    }

    #[test]
    fn a_service_with_two_ports() {
        let spec = json!({"clusterIP": "10.0.0.7", "ports": [
            {"name": "http-a", "port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"},
        ]});
        let wanted = [
            "WEB_1_SERVICE_HOST=10.0.0.7",
            "WEB_1_SERVICE_PORT=80",
            "WEB_1_SERVICE_PORT_HTTP_A=80",
            "WEB_1_SERVICE_PORT_DNS=53",
            "WEB_1_PORT=tcp://10.0.0.7:80",
            "WEB_1_PORT_80_TCP_PROTO=tcp",
            "WEB_1_PORT_80_TCP_PORT=80",
            "WEB_1_PORT_80_TCP_ADDR=10.0.0.7",
            "WEB_1_PORT_80_TCP=tcp://10.0.0.7:80",
            "WEB_1_PORT_53_UDP_PROTO=udp",
            "WEB_1_PORT_53_UDP_PORT=53",
            "WEB_1_PORT_53_UDP_ADDR=10.0.0.7",
            "WEB_1_PORT_53_UDP=udp://10.0.0.7:53",
        ];
        assert_eq!(variables(&spec), wanted);
    }

    #[test]
    fn an_unnamed_port_and_an_address_of_version_6() {
        let found = variables(&json!({"clusterIP": "fd00::7", "ports": [{"port": 80, "protocol": "TCP"}]}));
        assert!(found.contains(&"WEB_1_PORT_80_TCP=tcp://[fd00::7]:80".to_owned()));
        assert!(found.contains(&"WEB_1_SERVICE_HOST=fd00::7".to_owned()));
        assert!(!found.iter().any(|line| line.starts_with("WEB_1_SERVICE_PORT_")));
    }

    #[test]
    fn services_without_an_address_have_none() {
        let port = json!([{"port": 80}]);
        for spec in [
            json!({"clusterIP": "None", "ports": port}),
            json!({"clusterIP": "", "ports": port}),
            json!({"type": "ExternalName", "externalName": "example.com"}),
            json!({"clusterIP": "10.0.0.7"}),
        ] {
            assert_eq!(variables(&spec), Vec::<String>::new(), "{spec}");
        }
    }
}
