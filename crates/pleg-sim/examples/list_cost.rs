//! What one relist, both lists, costs the simulator, in CPU time of its thread.
//!
//! `cargo run --release -p pleg-sim --example list_cost -- 5000`

use std::error::Error;
use std::io::Write;

use pleg_cri::{Client, Config, Endpoint, ListFilter};
use pleg_sim::{Sim, SimConfig};
use tokio::time::Instant;

const RELISTS: u32 = 100;

/// Nanoseconds on a CPU of the thread of that name.
fn cpu_of(name: &str) -> Result<u64, Box<dyn Error>> {
    for task in std::fs::read_dir("/proc/self/task")? {
        let path = task?.path();
        if std::fs::read_to_string(path.join("comm"))?.trim() == name {
            let text = std::fs::read_to_string(path.join("schedstat"))?;
            return Ok(text.split(' ').next().unwrap_or_default().parse()?);
        }
    }
    Err(format!("no thread {name}").into())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let pods = std::env::args().nth(1).map_or(Ok(5000), |arg| arg.parse())?;
    let socket = std::env::temp_dir().join(format!("pleg-list-cost-{}.sock", std::process::id()));
    let config = SimConfig {
        pods,
        ..Default::default()
    };
    let made = Instant::now();
    let sim = Sim::spawn_thread(config, Endpoint::unix(socket)).await?;
    let made = made.elapsed();
    let client = Client::connect(sim.endpoint().clone(), Config::default()).await?;
    let mut bytes = 0;
    let (mut started, mut cpu) = (Instant::now(), 0);
    for relist in 0..=RELISTS {
        let sandboxes = client.list_sandboxes(&ListFilter::All, |_| {}).await?;
        let containers = client.list_containers(&ListFilter::All, |_| {}).await?;
        bytes = sandboxes.bytes + containers.bytes;
        if relist == 0 {
            // The first one finds cold memory and asks for streaming lists in vain.
            (started, cpu) = (Instant::now(), cpu_of("pleg-sim")?);
        }
    }
    let wall = started.elapsed() / RELISTS;
    let server = (cpu_of("pleg-sim")? - cpu) / u64::from(RELISTS) / 1000;
    writeln!(
        std::io::stdout(),
        "{pods} pods made in {made:?}; one relist: {bytes} bytes, {server} us of server CPU, {wall:?} wall"
    )?;
    sim.shutdown().await;
    Ok(())
}
