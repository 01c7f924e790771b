//! Steps that many scenarios share: act, and wait until the generator has reported it.

use anyhow::{Context as _, Result};
use tokio::task::JoinSet;

use crate::image::Program;
use crate::{Container, Context, Observer, Pod, Sandbox};

/// A container that stays until it is killed.
pub fn app() -> Container {
    Container::new("app", Program::Stubborn)
}

/// So many pods, called `pod-0` and on, each with running containers of these names. Created at once: no generator runs yet.
pub async fn crowd(context: &Context, pods: usize, names: &'static [&'static str]) -> Result<Vec<Member>> {
    let mut making = JoinSet::new();
    for n in 0..pods {
        let kubelet = context.kubelet.clone();
        making.spawn(async move {
            let sandbox = kubelet.run_pod(&Pod::new(&format!("pod-{n}"))).await?;
            let mut containers = Vec::new();
            for name in names {
                let id = kubelet.run(&sandbox, &Container::new(name, Program::Stubborn)).await?;
                let pid = kubelet.container_pid(&id).await?;
                containers.push((id, pid));
            }
            anyhow::Ok(Member {
                number: n,
                sandbox,
                containers,
            })
        });
    }
    let mut members = Vec::new();
    while let Some(made) = making.join_next().await {
        members.push(made.context("make a pod")??);
    }
    members.sort_by_key(|member| member.number);
    Ok(members)
}

/// A pod of a [`crowd`].
#[derive(Debug)]
pub struct Member {
    number: usize,
    /// Its sandbox.
    pub sandbox: Sandbox,
    /// Ids and processes of its containers, in the order of their names.
    pub containers: Vec<(String, i32)>,
}

/// A pod with one running container, seen by the generator.
pub async fn running(
    context: &Context,
    node: &mut Observer,
    pod: &Pod,
    container: &Container,
) -> Result<(Sandbox, String)> {
    let sandbox = context.kubelet.run_pod(pod).await?;
    node.sees(pod, &["PodSandboxChanged Ready"]).await?;
    let id = joined(context, node, &sandbox, container).await?;
    Ok((sandbox, id))
}

/// One more running container in a pod, seen by the generator.
pub async fn joined(
    context: &Context,
    node: &mut Observer,
    sandbox: &Sandbox,
    container: &Container,
) -> Result<String> {
    let id = context.kubelet.create(sandbox, container).await?;
    let name = format!("{}#{}", container.name, container.attempt);
    node.sees(&sandbox.pod, &[&format!("ContainerCreated {name}")]).await?;
    context.kubelet.start(&id).await?;
    node.sees(&sandbox.pod, &[&format!("ContainerStarted {name}")]).await?;
    Ok(id)
}
