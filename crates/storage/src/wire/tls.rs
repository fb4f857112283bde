//! TLS 1.3 of connections: between a host and a server that have certificates of an authority, and with a key that is used once and
//! whose public half the other side was told over ssh.

use aws_lc_rs::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair},
};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::secrecy::read_private;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, ServerConfig,
    SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{self, CryptoProvider},
    pki_types::{
        CertificateDer, PrivateKeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
        pem::PemObject,
    },
    server::AlwaysResolvesServerRawPublicKeys,
    sign::CertifiedKey,
    version::TLS13,
};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The files by which a host and a server know each other, in PEM. Both sides need all three.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate of this side, and those between it and the authority.
    pub certificate: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
    /// The authorities that sign the certificates of other sides.
    pub authorities: Option<PathBuf>,
}

/// What the files hold.
pub(super) struct TlsParts {
    pub(super) chain: Vec<CertificateDer<'static>>,
    pub(super) key: PrivateKeyDer<'static>,
    pub(super) roots: Arc<RootCertStore>,
}

pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(crypto::aws_lc_rs::default_provider())
}

pub(super) fn no_tls(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Bug, "cannot set up TLS").because(error)
}

impl TlsFiles {
    /// Returns a connection to the server of this name, which is checked, as is its certificate.
    ///
    /// # Errors
    /// As [`TlsFiles::read`]; [`ErrorKind::Usage`] if the name is neither one nor an address.
    pub(crate) fn client(&self, name: &str) -> Result<ClientConnection> {
        let parts = self.read()?;
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .map_err(no_tls)?
            .with_root_certificates(parts.roots)
            .with_client_auth_cert(parts.chain, parts.key)
            .map_err(|error| self.unfit(error))?;
        let server = ServerName::try_from(name.to_owned()).map_err(|error| {
            let message = format!("cannot use {name:?} as the name of a server");
            Error::new(ErrorKind::Usage, message).because(error)
        })?;
        ClientConnection::new(Arc::new(config), server).map_err(no_tls)
    }

    /// Reads the files.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if a file was not named; it cannot be read or used.
    pub(super) fn read(&self) -> Result<TlsParts> {
        let (chain, key) = self.read_own()?;
        let authorities = named_file(self.authorities.as_ref(), "--tls-ca")?;
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates(&authorities)?);
        if roots.is_empty() {
            let message =
                format!("cannot use {authorities:?}: it has no certificate of an authority");
            return Err(Error::new(ErrorKind::Usage, message));
        }
        Ok(TlsParts {
            chain,
            key,
            roots: Arc::new(roots),
        })
    }

    /// Reads the certificate of this side and its key.
    ///
    /// # Errors
    /// As [`TlsFiles::read`].
    pub(super) fn read_own(
        &self,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let chain = named_file(self.certificate.as_ref(), "--tls-cert")?;
        let key = named_file(self.key.as_ref(), "--tls-key")?;
        Ok((certificates(&chain)?, private_key(&key)?))
    }

    pub(super) fn unfit(&self, error: rustls::Error) -> Error {
        let name = |file: &Option<PathBuf>| file.clone().unwrap_or_default();
        let (certificate, key) = (name(&self.certificate), name(&self.key));
        let message = format!("cannot use the certificate {certificate:?} with the key {key:?}");
        Error::new(ErrorKind::Usage, message).because(error)
    }
}

fn named_file(file: Option<&PathBuf>, option: &str) -> Result<PathBuf> {
    file.cloned().ok_or_else(|| {
        let message = "cannot use TLS without a certificate, its key and an authority";
        Error::new(ErrorKind::Usage, message).hint(format!("name the file with {option}"))
    })
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let text = fs::read(file)
        .map_err(|error| Error::io(format!("could not read the certificate {file:?}"), error))?;
    let all = CertificateDer::pem_slice_iter(&text).collect::<std::result::Result<Vec<_>, _>>();
    all.map_err(|error| {
        let message = format!("cannot use the certificate {file:?}");
        Error::new(ErrorKind::Usage, message).because(error)
    })
}

/// Reads a private key, which only this user may be able to read.
fn private_key(file: &Path) -> Result<PrivateKeyDer<'static>> {
    let failed = |error| Error::io(format!("could not read the private key {file:?}"), error);
    let Some(text) = read_private(file).map_err(failed)? else {
        let message = format!("cannot use the private key {file:?}: others can read it");
        return Err(Error::new(ErrorKind::Permission, message).hint("make it 0600"));
    };
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
        let message = format!("cannot use the private key {file:?}");
        Error::new(ErrorKind::Usage, message)
            .because(error)
            .hint("a key with a password cannot be used; `openssl pkey` removes the password")
    })
}

/// Returns a new key of a server for one session, and its public half.
///
/// # Errors
/// [`ErrorKind::System`] if no key can be made.
pub(super) fn one_time_server() -> Result<(Arc<ServerConfig>, Vec<u8>)> {
    let pair = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &SystemRandom::new());
    let private = pair.map_err(|error| {
        Error::new(ErrorKind::System, "could not make a key").because(error.to_string())
    })?;
    let private = PrivateKeyDer::Pkcs8(private.as_ref().to_vec().into());
    let signing = crypto::aws_lc_rs::sign::any_supported_type(&private).map_err(no_tls)?;
    let public = signing.public_key().map(|key| key.to_vec());
    let public = public.ok_or_else(|| Error::new(ErrorKind::Bug, "a key has no public half"))?;
    // A bare key without a certificate: the client learns it by the first connection, and accepts no other.
    let certified = CertifiedKey::new(vec![CertificateDer::from(public.clone())], signing);
    let resolver = AlwaysResolvesServerRawPublicKeys::new(Arc::new(certified));
    let config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(no_tls)?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(resolver));
    Ok((Arc::new(config), public))
}

/// Returns a connection to a server of [`one_time_server`] whose public key is `pin`, and no other one.
///
/// # Errors
/// [`ErrorKind::Bug`].
pub(crate) fn pinned_client(pin: &[u8]) -> Result<ClientConnection> {
    let verifier = PinnedKey {
        pin: pin.to_vec(),
        provider: provider(),
    };
    let config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&TLS13])
        .map_err(no_tls)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    // Names play no part, but one must be said.
    let name = ServerName::try_from("fullbore").map_err(no_tls)?;
    ClientConnection::new(Arc::new(config), name).map_err(no_tls)
}

/// Takes one public key for that of the server.
#[derive(Debug)]
struct PinnedKey {
    pin: Vec<u8>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedKey {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        if end_entity.as_ref() == self.pin {
            return Ok(ServerCertVerified::assertion());
        }
        Err(rustls::Error::General("its key is another one".to_owned()))
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("only TLS 1.3 is spoken".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let key = SubjectPublicKeyInfoDer::from(cert.as_ref());
        let algorithms = &self.provider.signature_verification_algorithms;
        crypto::verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let algorithms = &self.provider.signature_verification_algorithms;
        algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}
