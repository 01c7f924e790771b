//! The flags of `pleg node` that make the machine a node of a cluster.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use k8s_openapi::api::core::v1::Taint;
use pleg_cluster::cluster::{Cluster, ClusterConfig};
use pleg_cluster::node::machine::Machine;
use pleg_cluster::node::resources::Resources;
use pleg_cluster::node::settings::{NodeSettings, Register, parse_label, parse_taint};
use pleg_node::executor::requests::NodeConfig;
use pleg_node::manifest::Quantity;
use pleg_node::{EvictionConfig, Signal};

#[derive(Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct ClusterArgs {
    /// Become a node of the cluster of this kubeconfig
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Request a client certificate with the token of this kubeconfig, if --kubeconfig does not exist or its certificate has expired
    #[arg(long, value_name = "FILE", requires = "kubeconfig")]
    bootstrap_kubeconfig: Option<PathBuf>,
    /// Directory of requested certificates and their keys
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/var/lib/pleg/pki",
        requires = "kubeconfig"
    )]
    cert_dir: PathBuf,
    /// Create the Node object: whenever there is none (true), not again after it was deleted (once), or leave it to others (false)
    #[arg(long, value_name = "WHEN", default_value = "true", requires = "kubeconfig")]
    register_node: RegisterArg,
    /// Labels of the node at registration, such as disk=ssd,example.com/rack=r1
    #[arg(long, value_name = "LABELS", value_delimiter = ',', value_parser = parse_label, requires = "kubeconfig")]
    node_labels: Vec<(String, String)>,
    /// Taints of the node at registration, such as dedicated=gpu:NoSchedule
    #[arg(long, value_name = "TAINTS", value_delimiter = ',', value_parser = parse_taint, requires = "kubeconfig")]
    register_with_taints: Vec<Taint>,
    /// Resources that pods do not get, such as cpu=100m,memory=256Mi,ephemeral-storage=1Gi
    #[arg(long, value_name = "RESOURCES", value_delimiter = ',', value_parser = reserved, requires = "kubeconfig")]
    reserved: Vec<(Resource, u64)>,
    /// How many pods the node takes
    #[arg(long, value_name = "N", default_value = "110", requires = "kubeconfig")]
    max_pods: u32,
}

/// When the Node object is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RegisterArg {
    /// Whenever there is none
    True,
    /// Not again after it was deleted
    Once,
    /// Somebody else creates it
    False,
}

/// A resource that can be reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resource {
    Cpu,
    Memory,
    EphemeralStorage,
}

impl ClusterArgs {
    /// Most pods of the node.
    pub(super) fn max_pods(&self) -> u32 {
        self.max_pods
    }

    /// The API side of the node, if it is to have one.
    pub(super) async fn open(
        &self,
        node: &NodeConfig,
        node_ip: bool,
        eviction: &EvictionConfig,
        runtime_version: String,
        port: Option<u16>,
    ) -> Option<Cluster> {
        let kubeconfig = self.kubeconfig.clone()?;
        let config = ClusterConfig {
            kubeconfig,
            bootstrap_kubeconfig: self.bootstrap_kubeconfig.clone(),
            cert_dir: self.cert_dir.clone(),
            name: node.name.clone(),
            node: NodeSettings {
                register: match self.register_node {
                    RegisterArg::True => Register::Always,
                    RegisterArg::Once => Register::Once,
                    RegisterArg::False => Register::Never,
                },
                labels: self.node_labels.iter().cloned().collect(),
                taints: self.register_with_taints.clone(),
                ips: if node_ip { node.ips.clone() } else { Vec::new() },
                capacity: self.capacity(node),
                reserved: self.reserved_of(&self.capacity(node), eviction),
                port,
                machine: Machine::read(),
                runtime_version,
            },
        };
        Some(Cluster::new(config).await)
    }

    fn capacity(&self, node: &NodeConfig) -> Resources {
        Resources {
            milli_cpu: node.host.cpus.saturating_mul(1000),
            memory: node.memory,
            ephemeral_storage: node.host.ephemeral_storage,
            pods: self.max_pods.into(),
        }
    }

    /// What the operator reserves, and what hard eviction thresholds keep free: pods that use it would be evicted.
    fn reserved_of(&self, capacity: &Resources, eviction: &EvictionConfig) -> Resources {
        let mut reserved = Resources::default();
        for (resource, amount) in &self.reserved {
            match resource {
                Resource::Cpu => reserved.milli_cpu = *amount,
                Resource::Memory => reserved.memory = *amount,
                Resource::EphemeralStorage => reserved.ephemeral_storage = *amount,
            }
        }
        reserved.plus(Resources {
            memory: eviction.kept_free(Signal::MemoryAvailable, capacity.memory),
            ephemeral_storage: eviction.kept_free(Signal::NodeFsAvailable, capacity.ephemeral_storage),
            ..Resources::default()
        })
    }
}

/// Parses `NAME=AMOUNT`. CPU in thousandths, all else in bytes.
fn reserved(text: &str) -> Result<(Resource, u64), String> {
    let expected = || "expected RESOURCE=AMOUNT with cpu, memory or ephemeral-storage, such as memory=256Mi".to_owned();
    let (name, amount) = text.split_once('=').ok_or_else(expected)?;
    let amount = Quantity::parse(amount).map_err(|error| error.to_string())?;
    let (resource, amount) = match name {
        "cpu" => (Resource::Cpu, amount.milli()),
        "memory" => (Resource::Memory, amount.units()),
        "ephemeral-storage" => (Resource::EphemeralStorage, amount.units()),
        _ => return Err(expected()),
    };
    Ok((resource, u64::try_from(amount).unwrap_or_default()))
}
