//! The kubeconfig: read at the start, and again whenever it changes or cannot be used.
//!
//! So are the certificates and keys that it refers to: others may replace them, and so does bootstrap.
//!
//! A kubeconfig that cannot be used is an API server that cannot be reached: until it can, every call fails with the reason
//! ([`Api::unusable`]). So no part has to know, and static pods run.

use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use kube::config::KubeconfigError;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::api::{Api, read_kubeconfig, with_causes};
use crate::certificates::referenced_files;

/// How often the file is checked for changes.
const CHECK_PERIOD: Duration = Duration::from_secs(5);

/// What is known of the kubeconfig.
#[derive(Debug)]
pub struct Connection {
    kubeconfig: PathBuf,
    /// The file, and those that it refers to, as they were last read; none for one that is missing.
    read: Vec<Option<FileVersion>>,
    /// Where it comes from if there is none.
    bootstrap: bool,
    /// Why it cannot be used.
    trouble: Option<String>,
}

/// Changes whenever a file is replaced or written.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FileVersion {
    modified: Option<SystemTime>,
    size: u64,
    /// A file that is replaced within the same moment by one of the same size is another one.
    inode: u64,
}

impl Connection {
    /// Reads nothing yet.
    pub fn new(kubeconfig: PathBuf) -> Self {
        Self {
            kubeconfig,
            read: Vec::new(),
            bootstrap: false,
            trouble: None,
        }
    }

    /// A missing kubeconfig is no error: it is going to be written.
    #[must_use]
    pub fn with_bootstrap(mut self, bootstrap: bool) -> Self {
        self.bootstrap = bootstrap;
        self
    }

    /// The API server of the kubeconfig; if that cannot be used, one that no call reaches, and a line in the log.
    pub async fn open(&mut self) -> Api {
        let api = Api::unusable("the kubeconfig has not been read yet");
        self.load(&api).await;
        api
    }

    /// Reads the file, and lets callers use what it says.
    async fn load(&mut self, api: &Api) {
        self.read = self.versions().await;
        let path = self.kubeconfig.display();
        let trouble = match read_kubeconfig(&self.kubeconfig).await {
            Ok(config) => api.replace(config).err().map(|error| error.to_string()),
            Err(error) => Some(in_one_line(&error)),
        };
        let awaited = self.bootstrap && self.read.first().is_some_and(Option::is_none);
        match (&trouble, &self.trouble) {
            (Some(why), before) if before.as_ref() != Some(why) && !awaited => error!(
                "cannot use kubeconfig {path}: {why}. Static pods run; once the file is corrected, it is read again"
            ),
            (None, Some(_)) => info!("using kubeconfig {path} now"),
            _ => {}
        }
        if let Some(why) = &trouble {
            // Credentials that worked are kept: a half-written file must not cut the node off.
            api.fail_unless_usable(&format!("kubeconfig {path}: {why}"));
        }
        self.trouble = trouble;
    }

    async fn versions(&self) -> Vec<Option<FileVersion>> {
        let path = self.kubeconfig.clone();
        let versions = tokio::task::spawn_blocking(move || {
            let version = |file: PathBuf| {
                let metadata = std::fs::metadata(file).ok()?;
                Some(FileVersion {
                    modified: metadata.modified().ok(),
                    size: metadata.len(),
                    inode: metadata.ino(),
                })
            };
            referenced_files(&path).into_iter().map(version).collect()
        });
        versions.await.unwrap_or_default()
    }
}

/// What is wrong with a kubeconfig whose name is known.
fn in_one_line(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(error, _) => error.to_string(),
        // The rest of it shows the place in several lines.
        KubeconfigError::Parse(error) => {
            let text = error.to_string();
            let first = text.lines().next().unwrap_or_default();
            format!("not a kubeconfig: {}", first.trim_start_matches("error: "))
        }
        other => with_causes(other),
    }
}

/// Follows changes of the kubeconfig until shutdown.
pub(crate) async fn watch_kubeconfig(mut connection: Connection, api: Api, shutdown: CancellationToken) {
    let mut tick = interval(CHECK_PERIOD);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => return,
            _ = tick.tick() => {}
        }
        if connection.trouble.is_some() || connection.versions().await != connection.read {
            connection.load(&api).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::call;

    const GOOD: &str = "{clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: u, user: {}}], \
                        contexts: [{name: x, context: {cluster: c, user: u}}], current-context: x}";

    /// As a manager of certificates replaces them.
    #[tokio::test]
    async fn files_that_it_refers_to_are_part_of_it() {
        let dir = tempfile::tempdir().unwrap();
        let (path, file) = (dir.path().join("kubeconfig"), dir.path().join("client.pem"));
        let user = "user: {client-certificate: client.pem, client-key: client.pem}";
        std::fs::write(&path, GOOD.replace("user: {}", user)).unwrap();
        let mut connection = Connection::new(path);
        connection.open().await;
        for content in ["one", "two", "two"] {
            let new = dir.path().join("new");
            std::fs::write(&new, content).unwrap();
            std::fs::rename(&new, &file).unwrap();
            let versions = connection.versions().await;
            assert_ne!(versions, connection.read, "{content}");
            connection.read = versions;
        }
        assert_eq!(connection.versions().await, connection.read);
    }

    #[tokio::test]
    async fn a_kubeconfig_may_be_corrected_later() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        let mut connection = Connection::new(path.clone());
        let api = connection.open().await;
        assert_eq!(
            connection.trouble.as_deref(),
            Some("No such file or directory (os error 2)")
        );
        let error = call("get the version", api.client().apiserver_version())
            .await
            .unwrap_err();
        assert!(
            error.is_transient() && error.to_string().contains("No such file"),
            "{error}"
        );

        std::fs::write(&path, "not: [yaml").unwrap();
        connection.load(&api).await;
        let trouble = connection.trouble.clone().unwrap();
        assert!(
            trouble.starts_with("not a kubeconfig: line 1") && trouble.lines().count() == 1,
            "{trouble}"
        );

        std::fs::write(&path, GOOD).unwrap();
        connection.load(&api).await;
        assert_eq!(
            (connection.trouble.as_deref(), api.server().as_str()),
            (None, "http://127.0.0.1:1/")
        );

        // A file that is half written does not take away what works.
        std::fs::write(&path, "{clusters: ").unwrap();
        connection.load(&api).await;
        assert!(connection.trouble.is_some());
        assert_eq!(api.server(), "http://127.0.0.1:1/");
    }
}
