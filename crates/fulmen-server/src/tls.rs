//! TLS: certificates and keys from PEM files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{self, ServerConfig};

/// Where the certificate of a server and its key are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate, and those of the authorities between it and a root, in PEM.
    pub certificates: PathBuf,
    /// The private key of the first one, in PEM: PKCS #8, PKCS #1 or SEC 1.
    pub key: PathBuf,
}

/// Why a certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is no PEM.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: pem::Error,
    },
    /// A file without a certificate.
    #[error("{} has no certificate", path.display())]
    NoCertificate {
        /// The file.
        path: PathBuf,
    },
    /// The certificate and the key do not belong together, or are of a kind that is not supported.
    #[error("the certificate of {} cannot be used: {error}", path.display())]
    Refused {
        /// The file of the certificate.
        path: PathBuf,
        /// What is wrong with it.
        error: rustls::Error,
    },
}

impl TlsFiles {
    /// Reads the files.
    pub(crate) fn acceptor(&self) -> Result<TlsAcceptor, TlsError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |error| TlsError::Read { path, error }
        };
        let path = &self.certificates;
        let chain: Result<Vec<CertificateDer<'static>>, pem::Error> =
            CertificateDer::pem_file_iter(path).and_then(|certificates| certificates.collect());
        let chain = chain.map_err(failed(path))?;
        if chain.is_empty() {
            return Err(TlsError::NoCertificate { path: path.clone() });
        }
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(failed(&self.key))?;
        let refused = |error| TlsError::Refused { path: path.clone(), error };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(refused)?
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(refused)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}
