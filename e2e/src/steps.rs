//! Steps that many scenarios share: act, and wait until the generator has told of it.

use anyhow::Result;

use crate::image::Program;
use crate::{Container, Context, Observer, Pod, Sandbox};

/// A container that stays until it is killed.
pub fn app() -> Container {
    Container::new("app", Program::Stubborn)
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
