//! Starts a containerd and keeps it until Ctrl-C: `cargo run -p pleg-e2e --example containerd -- VERSION [PODS]`.

#![allow(clippy::print_stdout, reason = "a program for people")]

use anyhow::{Context, Result, bail};
use pleg_e2e::image::Program;
use pleg_e2e::{Container, Containerd, Pod, Version, image, suite, version};

#[tokio::main]
async fn main() -> Result<()> {
    let usage = "usage: containerd VERSION [PODS], where VERSION is 1.6, 1.7 or 2.1";
    let mut args = std::env::args().skip(1);
    let version = args.next().and_then(|name| Version::from_name(&name)).context(usage)?;
    let pods: u32 = args.next().map_or(Ok(0), |count| count.parse()).context(usage)?;
    if let Some(obstacle) = version::obstacle() {
        bail!("{obstacle}");
    }
    let containerd = Containerd::start(version).await?;
    let kubelet = containerd.kubelet();
    for number in 1..=pods {
        let sandbox = kubelet.run_pod(&Pod::new(&format!("pod-{number}"))).await?;
        kubelet
            .run(&sandbox, &Container::new("app", Program::Polite(0)))
            .await?;
    }
    let runtime = containerd.client().version().await?;
    println!("containerd {}, process {}", runtime.runtime_version, containerd.pid()?);
    println!("endpoint   {}", containerd.endpoint());
    println!("image      {}", image::NAME);
    println!("directory  {}", containerd.home().dir().display());
    println!();
    println!(
        "export CONTAINER_RUNTIME_ENDPOINT={}    # for pleg and crictl",
        containerd.endpoint()
    );
    println!(
        "{}/ctr -a {} -n k8s.io tasks ls",
        version.bin()?.display(),
        containerd.endpoint().path().display()
    );
    println!("Ctrl-C ends it and everything in it.");
    suite::interrupted().await;
    Ok(())
}
