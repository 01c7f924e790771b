//! Starts a containerd with the test image and keeps it until Ctrl-C: `cargo run -p pleg-e2e --example containerd -- 2.1`.

#![allow(clippy::print_stdout, reason = "a program for people")]

use anyhow::{Context, Result, bail};
use pleg_e2e::{Containerd, Version, image, suite, version};

#[tokio::main]
async fn main() -> Result<()> {
    let usage = "which one? 1.6, 1.7 or 2.1";
    let name = std::env::args().nth(1).context(usage)?;
    let version = Version::from_name(&name).context(usage)?;
    if let Some(obstacle) = version::obstacle() {
        bail!("{obstacle}");
    }
    let containerd = Containerd::start(version).await?;
    let runtime = containerd.client().version().await?;
    println!("containerd {}, process {}", runtime.runtime_version, containerd.pid()?);
    println!("endpoint   {}", containerd.endpoint());
    println!("image      {}", image::NAME);
    println!("directory  {}", containerd.home().dir().display());
    println!();
    println!("export CONTAINER_RUNTIME_ENDPOINT={}", containerd.endpoint());
    println!(
        "{}/ctr -a {} -n k8s.io containers ls",
        version.bin()?.display(),
        containerd.endpoint().path().display()
    );
    println!("Ctrl-C ends it and everything in it.");
    suite::interrupted().await;
    Ok(())
}
