//! The settings of a server that hosts reach with certificates: which certificates it takes, as its files say now.

use super::tls::{TlsFiles, no_tls, provider};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::queue::Locked;
use fullbore_wire::certificate::certificate_name;
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    pki_types::{CertificateDer, CertificateRevocationListDer, UnixTime, pem::PemObject},
    server::{
        NoServerSessionStorage, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    version::TLS13,
};
use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

/// Which hosts a server answers.
#[derive(Debug, Clone, Default)]
pub struct TlsClients {
    /// The certificates that do not count any more, in PEM.
    pub revoked: Option<PathBuf>,
    /// The names that certificates may have; any of them if there is none.
    pub names: BTreeSet<String>,
}

/// The settings of a server, which follow its files: each connection is checked against the newest lists.
#[derive(Debug)]
pub struct TlsServer {
    files: TlsFiles,
    /// Without it, clients show no certificate.
    clients: Option<TlsClients>,
    current: Mutex<CurrentConfig>,
}

#[derive(Debug)]
struct CurrentConfig {
    stamps: Vec<FileStamp>,
    config: Arc<ServerConfig>,
}

/// Inode, size, seconds and nanoseconds of the last change; `None` for a file that is not there.
type FileStamp = Option<(u64, u64, i64, i64)>;

impl TlsServer {
    /// Reads all files.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if a file was not named; it cannot be read or used.
    pub fn new(files: TlsFiles, clients: TlsClients) -> Result<Self> {
        Self::of(files, Some(clients))
    }

    /// Reads the certificate of this side and its key, for clients that show no certificate.
    ///
    /// # Errors
    /// As [`TlsServer::new`].
    pub fn for_everyone(files: TlsFiles) -> Result<Self> {
        Self::of(files, None)
    }

    fn of(files: TlsFiles, clients: Option<TlsClients>) -> Result<Self> {
        let current = CurrentConfig {
            stamps: stamps(&files, clients.as_ref()),
            config: server_config(&files, clients.as_ref())?,
        };
        Ok(Self {
            files,
            clients,
            current: Mutex::new(current),
        })
    }

    /// Returns the settings as of now. If a file that has changed cannot be used, the earlier settings stay, and a message says so once.
    pub fn config(&self) -> Arc<ServerConfig> {
        let mut current = self.current.locked();
        let clients = self.clients.as_ref();
        let stamps = stamps(&self.files, clients);
        if stamps != current.stamps {
            current.stamps = stamps;
            match server_config(&self.files, clients) {
                Ok(config) => current.config = config,
                Err(error) => eprintln!(
                    "warning: {}; the certificates and lists that were read before stay in use",
                    error.line()
                ),
            }
        }
        current.config.clone()
    }
}

fn stamps(files: &TlsFiles, clients: Option<&TlsClients>) -> Vec<FileStamp> {
    let all = [&files.certificate, &files.key, &files.authorities];
    let revoked = clients.and_then(|clients| clients.revoked.as_ref());
    let all = all.into_iter().flatten().chain(revoked);
    all.map(file_stamp).collect()
}

fn file_stamp(file: &PathBuf) -> Option<(u64, u64, i64, i64)> {
    let facts = fs::metadata(file).ok()?;
    Some((facts.ino(), facts.len(), facts.mtime(), facts.mtime_nsec()))
}

fn server_config(files: &TlsFiles, clients: Option<&TlsClients>) -> Result<Arc<ServerConfig>> {
    let Some(clients) = clients else {
        return open_config(files);
    };
    let parts = files.read()?;
    let mut verifier = WebPkiClientVerifier::builder_with_provider(parts.roots, provider());
    if let Some(file) = &clients.revoked {
        verifier = verifier.with_crls(revocation_lists(file)?);
    }
    let inner = verifier.build().map_err(|error| {
        let message = format!(
            "cannot use the list of revoked certificates {:?}",
            clients.revoked
        );
        Error::new(ErrorKind::Usage, message).because(error)
    })?;
    let verifier = Arc::new(NamedClients {
        inner,
        names: clients.names.clone(),
    });
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(no_tls)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(parts.chain, parts.key)
        .map_err(|error| files.unfit(error))?;
    // A resumed session would show no certificate.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Returns the settings for clients without certificates.
fn open_config(files: &TlsFiles) -> Result<Arc<ServerConfig>> {
    let (chain, key) = files.read_own()?;
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(no_tls)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| files.unfit(error))?;
    Ok(Arc::new(config))
}

fn revocation_lists(file: &Path) -> Result<Vec<CertificateRevocationListDer<'static>>> {
    let message = || format!("the list of revoked certificates {file:?}");
    let text = fs::read(file).map_err(|e| Error::io(format!("could not read {}", message()), e))?;
    let lists = CertificateRevocationListDer::pem_slice_iter(&text);
    let lists = lists.collect::<std::result::Result<Vec<_>, _>>();
    let lists = lists.map_err(|error| {
        Error::new(ErrorKind::Usage, format!("cannot use {}", message())).because(error)
    })?;
    // An empty file would let every revoked certificate in.
    if lists.is_empty() {
        let error = Error::new(ErrorKind::Usage, format!("cannot use {}", message()));
        return Err(error.because("it has no list in PEM"));
    }
    Ok(lists)
}

/// Takes certificates of the authority that have certain names.
#[derive(Debug)]
struct NamedClients {
    inner: Arc<dyn ClientCertVerifier>,
    names: BTreeSet<String>,
}

impl ClientCertVerifier for NamedClients {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self
            .inner
            .verify_client_cert(end_entity, intermediates, now)?;
        let name = certificate_name(end_entity);
        let is_named = name.is_some_and(|name| self.names.contains(&name));
        if self.names.is_empty() || is_named {
            return Ok(verified);
        }
        Err(CertificateError::ApplicationVerificationFailure.into())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}
