//! Listening, connections and the end.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tower_service::Service;

use crate::app::{App, router};
use crate::metrics::Metrics;
use crate::options::ServerOptions;
use crate::registry::Registry;
use crate::stalled::StallGuard;
use crate::tls::{TlsError, TlsFiles};

/// Bytes of the headers of a request.
const HEADER_BYTES: usize = 32 << 10;
/// How long a client may leave a response unread.
const STALL: Duration = Duration::from_secs(60);
/// How often models are looked at that nobody uses.
const SWEEP: Duration = Duration::from_millis(500);
/// How long the refusals of requests that came during the end may take.
const LATE: Duration = Duration::from_secs(1);
/// How long models may take to be unloaded when the server ends.
const UNLOAD: Duration = Duration::from_secs(5);
/// How long to wait after a failed accept, such as one without file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why a server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Anybody who reaches the address could use the server.
    #[error("{address} can be reached from other machines: set an API key, or pass --insecure")]
    Insecure {
        /// The address.
        address: SocketAddr,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {error}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        error: io::Error,
    },
    /// The certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// An origin that no header can have.
    #[error("the origin {0:?} is not valid; expected one such as https://example.org, or *")]
    Origin(String),
}

/// Connections that may wait to be accepted; the system may allow fewer. Clients beyond them try again after
/// a second.
const BACKLOG: u32 = 4096;

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // A server that starts again does not wait for connections of the one before. On Windows, this would let
    // two servers share a port.
    #[cfg(not(windows))]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// A server that listens.
pub struct Server {
    listener: TcpListener,
    app: Arc<App>,
    address: SocketAddr,
    tls: Option<TlsAcceptor>,
}

impl Server {
    /// Listens on the address of the options.
    pub async fn bind(options: ServerOptions, registry: Arc<Registry>) -> Result<Server, ServerError> {
        let asked = options.address;
        if !asked.ip().is_loopback() && options.api_keys.is_empty() && !options.insecure {
            return Err(ServerError::Insecure { address: asked });
        }
        let valid = |origin: &&String| {
            *origin == "*" || (origin.contains("://") && axum::http::HeaderValue::from_str(origin).is_ok())
        };
        if let Some(origin) = options.cors_origins.iter().find(|origin| !valid(origin)) {
            return Err(ServerError::Origin(origin.clone()));
        }
        let tls = options.tls.as_ref().map(TlsFiles::acceptor).transpose()?;
        let failed = |error| ServerError::Bind { address: asked, error };
        let listener = listen(asked).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let app = App {
            registry,
            metrics: Arc::default(),
            options,
            ending: AtomicBool::new(false),
            embedding: Arc::new(Semaphore::new(1)),
        };
        Ok(Server { listener, app: Arc::new(app), address, tls })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it listens, as a URL.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Answers requests until `shutdown` is ready; then refuses new work with status 503, finishes the
    /// answers that have begun, closes, and unloads all models.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let Server { listener, app, tls, .. } = self;
        let sweeper = tokio::spawn(sweep(Arc::clone(&app)));
        let connections = Connections::new(&app, tls);
        let connections = connections.accept(&listener, shutdown).await;
        app.ending.store(true, Ordering::Relaxed);
        connections.finish(listener, app.options.grace).await;
        sweeper.abort();
        // A device that hangs ends with the process.
        let _ = tokio::time::timeout(UNLOAD, app.registry.clear()).await;
    }
}

async fn sweep(app: Arc<App>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        app.registry.sweep().await;
    }
}

/// The open connections.
struct Connections {
    router: Router,
    metrics: Arc<Metrics>,
    header_timeout: Duration,
    permits: Arc<Semaphore>,
    graceful: GracefulShutdown,
    tasks: JoinSet<()>,
    tls: Option<TlsAcceptor>,
}

impl Connections {
    fn new(app: &Arc<App>, tls: Option<TlsAcceptor>) -> Connections {
        Connections {
            router: router(Arc::clone(app)),
            metrics: Arc::clone(&app.metrics),
            header_timeout: app.options.limits.header_timeout,
            permits: Arc::new(Semaphore::new(app.options.limits.connections)),
            graceful: GracefulShutdown::new(),
            tasks: JoinSet::new(),
            tls,
        }
    }

    async fn accept(mut self, listener: &TcpListener, shutdown: impl Future<Output = ()>) -> Connections {
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            while self.tasks.try_join_next().is_some() {}
            let accepted = tokio::select! {
                accepted = accept_one(listener, &self.permits) => accepted,
                () = &mut shutdown => return self,
            };
            match accepted {
                Ok((stream, permit)) => self.serve(stream, permit),
                Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
            }
        }
    }

    fn serve(&mut self, stream: TcpStream, permit: OwnedSemaphorePermit) {
        let (router, metrics) = (self.router.clone(), Arc::clone(&self.metrics));
        let (watcher, header_timeout) = (self.graceful.watcher(), self.header_timeout);
        let tls = self.tls.clone();
        self.tasks.spawn(async move {
            let _counted = metrics.connection();
            // Tokens are small, and must not wait for each other.
            let _ = stream.set_nodelay(true);
            let stream = StallGuard::new(stream, STALL);
            match tls {
                None => connection(stream, router, watcher, header_timeout).await,
                Some(tls) => {
                    // A handshake that fails is the client's affair.
                    if let Ok(Ok(stream)) = tokio::time::timeout(header_timeout, tls.accept(stream)).await {
                        connection(stream, router, watcher, header_timeout).await;
                    }
                }
            }
            drop(permit);
        });
    }

    /// Lets connections finish what they have begun, for some time. Meanwhile others are told that the server
    /// ends.
    async fn finish(mut self, listener: TcpListener, grace: Duration) {
        let earlier = std::mem::take(&mut self.graceful);
        let ended = async {
            let _ = tokio::time::timeout(grace, earlier.shutdown()).await;
        };
        let mut late = self.accept(&listener, ended).await;
        drop(listener);
        let _ = tokio::time::timeout(LATE, late.graceful.shutdown()).await;
        late.tasks.shutdown().await;
    }
}

async fn accept_one(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let permit = Arc::clone(permits).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, permit))
}

/// Answers the requests of a connection, one after the other.
async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    watcher: Watcher,
    header_timeout: Duration,
) {
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let mut router = router.clone();
        async move {
            let response: Result<_, Infallible> = router.call(request).await;
            response
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(header_timeout)
        .max_header_size(HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), service);
    // A client that goes away is no event of the server.
    let _ = watcher.watch(connection).await;
}
