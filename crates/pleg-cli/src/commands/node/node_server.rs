//! The flags of the node's own HTTPS server, and its start: what `kubectl logs` and `kubectl exec` reach.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use clap::Args;
use pleg_cluster::api::Api;
use pleg_cluster::certificates::ResolvesServerCert;
use pleg_cluster::cluster::{Cluster, NodeHandles};
use pleg_cluster::server::{ClientCa, HEALTHZ_PORT, PORT, ServedNode, Server, ServingCertificate};
use pleg_node::executor::requests::NodeConfig;
use tokio_util::sync::CancellationToken;

#[derive(Debug, Args)]
#[command(next_help_heading = "Server of the node")]
pub(super) struct ServerArgs {
    /// Address of the node's HTTPS server, which `kubectl logs` and `kubectl exec` reach
    #[arg(long, value_name = "IP", default_value_t = Ipv4Addr::UNSPECIFIED.into(), requires = "kubeconfig")]
    address: IpAddr,
    /// Port of the node's HTTPS server; 0 for no server
    #[arg(long, value_name = "PORT", default_value_t = PORT, requires = "kubeconfig")]
    port: u16,
    /// Accept client certificates that are signed by a certificate of this file [default: the CA of the kubeconfig]
    #[arg(long, value_name = "FILE", requires = "kubeconfig")]
    client_ca_file: Option<PathBuf>,
    /// Certificate of the node's HTTPS server, with its intermediates [default: one that the node makes and signs itself]
    #[arg(
        long,
        value_name = "FILE",
        requires = "kubeconfig",
        requires = "tls_private_key_file"
    )]
    tls_cert_file: Option<PathBuf>,
    /// Key of --tls-cert-file
    #[arg(long, value_name = "FILE", requires = "tls_cert_file")]
    tls_private_key_file: Option<PathBuf>,
    /// Let the cluster sign the certificate of the node's HTTPS server, and renew it
    #[arg(long, requires = "kubeconfig", conflicts_with = "tls_cert_file")]
    rotate_server_certificates: bool,
    /// Address of /healthz, which needs no authentication
    #[arg(long, value_name = "IP", default_value_t = Ipv4Addr::LOCALHOST.into(), requires = "kubeconfig")]
    healthz_bind_address: IpAddr,
    /// Port of /healthz; 0 for none
    #[arg(long, value_name = "PORT", default_value_t = HEALTHZ_PORT, requires = "kubeconfig")]
    healthz_port: u16,
}

/// The node's server. Whether its ports are free is found out when it runs: pods do not wait for them.
#[derive(Debug)]
pub(super) struct NodeServer {
    /// Addresses; none without a server.
    https: Option<SocketAddr>,
    healthz: Option<SocketAddr>,
    certificate: ServingCertificate,
    /// That certificate, or the one that the cluster has signed.
    resolver: Arc<dyn ResolvesServerCert>,
    config: NodeConfig,
    api: Api,
    client_ca: ClientCa,
}

impl ServerArgs {
    /// The port of the HTTPS server, for the Node object; none if there is no server.
    pub(super) fn port(&self) -> Option<u16> {
        (self.port != 0).then_some(self.port)
    }

    /// Reads certificates. It listens once it runs.
    pub(super) async fn open(&self, node: &NodeConfig, cluster: &mut Cluster) -> anyhow::Result<NodeServer> {
        let certificate = match (&self.tls_cert_file, &self.tls_private_key_file) {
            (Some(certificate), Some(key)) => {
                ServingCertificate::of_files(certificate, key).context("--tls-cert-file, --tls-private-key-file")?
            }
            _ => ServingCertificate::self_signed(node.name.as_str(), &node.ips)?,
        };
        let mut resolver: Arc<dyn ResolvesServerCert> = Arc::new(certificate.clone());
        if self.rotate_server_certificates {
            resolver = cluster.sign_serving_certificate(resolver);
        }
        let api = cluster.api();
        let address = |ip, port| (port != 0).then(|| SocketAddr::new(ip, port));
        Ok(NodeServer {
            https: address(self.address, self.port),
            healthz: address(self.healthz_bind_address, self.healthz_port),
            certificate,
            resolver,
            config: node.clone(),
            api: api.clone(),
            client_ca: self.client_ca(api).await?,
        })
    }

    /// Whose client certificates are accepted.
    async fn client_ca(&self, api: &Api) -> anyhow::Result<ClientCa> {
        match &self.client_ca_file {
            Some(file) => ClientCa::of_file(file).await.context("--client-ca-file"),
            None => Ok(ClientCa::of_kubeconfig(api.clone())),
        }
    }
}

impl NodeServer {
    /// Serves until shutdown.
    pub(super) async fn run(
        self,
        handles: NodeHandles,
        introspection: Router,
        shutdown: &CancellationToken,
    ) -> anyhow::Result<()> {
        let node = ServedNode {
            name: self.config.name.as_str().to_owned(),
            config: self.config,
            api: self.api,
            client_ca: self.client_ca,
            reports: handles.reports,
            pleg: handles.pleg,
            runtime: handles.runtime,
            introspection,
        };
        let certificate = self.certificate;
        let https = async {
            let missing = "kubectl logs, exec and top do not work on this node (--port for another one)";
            let Some(server) = bind(self.https, missing, shutdown).await else {
                return Ok(());
            };
            tracing::info!("serving logs and sessions on https://{}", server.address());
            server.run(node, self.resolver, shutdown).await
        };
        let healthz = async {
            let missing = "there is no /healthz (--healthz-port for another one)";
            if let Some(server) = bind(self.healthz, missing, shutdown).await {
                server.run_healthz(shutdown).await;
            }
        };
        let (served, (), ()) = tokio::join!(https, healthz, certificate.watch(shutdown));
        Ok(served?)
    }
}

/// Listens, if there is an address, as soon as it is free.
async fn bind(address: Option<SocketAddr>, missing: &str, shutdown: &CancellationToken) -> Option<Server> {
    Server::bind_when_free(address?, missing, shutdown).await
}
