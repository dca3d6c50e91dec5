//! A server in this process.

use std::io;
use std::sync::Arc;

use fulmen_server::{
    ApiError, ModelSpec, Registry, RegistryOptions, ServedModel, Server, ServerError, ServerOptions,
};
use tokio::sync::oneshot;

/// Why no server was started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LocalError {
    #[error("cannot start the server's threads: {0}")]
    Runtime(#[from] io::Error),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error("{0}")]
    Load(ApiError),
}

/// A running server. Dropping it ends it.
pub(super) struct LocalServer {
    pub(super) url: String,
    end: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl LocalServer {
    /// Serves one model on a free port of 127.0.0.1.
    pub(super) fn start(
        name: &str,
        model: Arc<dyn ServedModel>,
        threads: usize,
    ) -> Result<LocalServer, LocalError> {
        let spec = ModelSpec { name: name.to_owned(), ..ModelSpec::default() };
        let loader = move |_: &ModelSpec| Ok(Arc::clone(&model));
        let kept = RegistryOptions { keep_alive: None, ..RegistryOptions::default() };
        let registry = Registry::new(vec![spec], Arc::new(loader), kept).expect("one model has one name");
        let registry = Arc::new(registry);
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
        let options = ServerOptions { address: ([127, 0, 0, 1], 0).into(), ..ServerOptions::default() };
        let server = runtime.block_on(Server::bind(options, Arc::clone(&registry)))?;
        runtime.block_on(registry.preload(None)).map_err(LocalError::Load)?;
        let url = format!("http://{}", server.address());
        let (end, ended) = oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            runtime.block_on(server.run(async {
                let _ = ended.await;
            }));
        });
        Ok(LocalServer { url, end: Some(end), thread: Some(thread) })
    }
}

impl Drop for LocalServer {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
