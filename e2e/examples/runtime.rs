//! Starts a runtime and keeps it until Ctrl-C: `cargo run -p pleg-e2e --example runtime -- VERSION [PODS]`.

#![allow(clippy::print_stdout, reason = "a program for people")]

use anyhow::{Context, Result, bail};
use pleg_e2e::image::Program;
use pleg_e2e::{Container, Pod, Runtime, Version, image, suite};

#[tokio::main]
async fn main() -> Result<()> {
    let usage = "usage: runtime VERSION [PODS], where VERSION is 1.6, 1.7, 2.1, crio or crio-events";
    let mut args = std::env::args().skip(1);
    let version = args.next().and_then(|name| Version::from_name(&name)).context(usage)?;
    let pods: u32 = args.next().map_or(Ok(0), |count| count.parse()).context(usage)?;
    if let Some(obstacle) = version.obstacle() {
        bail!("{obstacle}");
    }
    let runtime = Runtime::start(version).await?;
    let kubelet = runtime.kubelet();
    for number in 1..=pods {
        let sandbox = kubelet.run_pod(&Pod::new(&format!("pod-{number}"))).await?;
        kubelet
            .run(&sandbox, &Container::new("app", Program::Polite(0)))
            .await?;
    }
    let told = runtime.client().version().await?;
    println!(
        "{} {}, process {}",
        told.runtime_name,
        told.runtime_version,
        runtime.pid()?
    );
    println!("endpoint   {}", runtime.endpoint());
    println!("image      {}", image::NAME);
    println!("directory  {}", runtime.home().dir().display());
    println!();
    println!(
        "export CONTAINER_RUNTIME_ENDPOINT={}    # for pleg and crictl",
        runtime.endpoint()
    );
    if !version.is_crio() {
        println!(
            "{}/ctr -a {} -n k8s.io tasks ls",
            version.bin()?.display(),
            runtime.endpoint().path().display()
        );
    }
    println!("Ctrl-C ends it and everything in it.");
    suite::interrupted().await;
    Ok(())
}
