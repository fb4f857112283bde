//! Encrypted connections and the check of the server's identity, with the parameters and meanings
//! of libpq.
//!
//! If there are root certificates, the server's certificate is checked against them in every mode.
//! The server's name is checked only by `verify-full`. Differences to libpq:
//! - A root file that was named and is missing is an error in every mode.
//! - The name must be among the certificate's alternative names: the common name is not read.
//! - A certificate of X.509 version 1 cannot be verified.

use super::conninfo::{CertificateRoots, SslMode, Tls};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_platform::secrecy::read_private;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor, verify_server_name,
    },
    crypto::{self, CryptoProvider},
    pki_types::{
        CertificateDer, PrivateKeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
        pem::PemObject,
    },
    server::ParsedCertificate,
};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio_postgres_rustls::MakeRustlsConnect;
use x509_cert::{
    Certificate, Version,
    der::{Decode, Encode},
};

/// Files in which systems keep their trusted certificates.
const BUNDLES: [&str; 5] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// Returns the connector for the encryption that `tls` describes.
///
/// # Errors
/// If a file of certificates or keys cannot be read or others may read the key;
/// [`ErrorKind::Usage`] if the mode verifies and there is no root certificate.
pub fn connector(tls: &Tls) -> Result<MakeRustlsConnect> {
    client_config(tls).map(MakeRustlsConnect::new)
}

/// Returns the configuration of the side that connects.
///
/// # Errors
/// As [`connector`].
pub(crate) fn client_config(tls: &Tls) -> Result<ClientConfig> {
    let provider = Arc::new(crypto::aws_lc_rs::default_provider());
    let trusted = trusted_roots(tls)?;
    let verifier = Verifier {
        trusted,
        checks_name: tls.mode == SslMode::VerifyFull,
        provider: Arc::clone(&provider),
    };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::new(ErrorKind::Bug, "cannot set up TLS").because(error))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    let mut config = match &tls.identity {
        None => config.with_no_client_auth(),
        Some((cert, key)) => config
            .with_client_auth_cert(read_certificates(cert)?, read_private_key(key)?)
            .map_err(|error| client_certificate_error(cert, key, error))?,
    };
    // Servers since 17 demand this protocol with direct TLS; others ignore it.
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    Ok(config)
}

/// Returns the hash of a server's certificate to which a password is bound (`tls-server-end-point`, RFC 5929): by the
/// hash of its signature, but SHA-256 for older ones. `None` if its signature has no known hash.
pub(crate) fn certificate_hash(der: &[u8]) -> Option<Vec<u8>> {
    use sha2::{Digest, Sha256, Sha384, Sha512};
    let certificate = Certificate::from_der(der).ok()?;
    match certificate.signature_algorithm.oid.to_string().as_str() {
        // MD5, SHA-1 and SHA-256 with RSA; SHA-1 and SHA-256 with ECDSA.
        "1.2.840.113549.1.1.4"
        | "1.2.840.113549.1.1.5"
        | "1.2.840.113549.1.1.11"
        | "1.2.840.10045.4.1"
        | "1.2.840.10045.4.3.2" => Some(Sha256::digest(der).to_vec()),
        "1.2.840.113549.1.1.12" | "1.2.840.10045.4.3.3" => Some(Sha384::digest(der).to_vec()),
        "1.2.840.113549.1.1.13" | "1.2.840.10045.4.3.4" => Some(Sha512::digest(der).to_vec()),
        _ => None,
    }
}

/// Returns the certificates that may sign the server's; `None` if the certificate is not checked.
fn trusted_roots(tls: &Tls) -> Result<Option<Trusted>> {
    let file = match &tls.roots {
        CertificateRoots::None if tls.mode >= SslMode::VerifyCa => {
            return Err(Error::new(
                ErrorKind::Usage,
                "there is no root certificate to verify the server with",
            )
            .hint("name one with sslrootcert=FILE, or use sslrootcert=system"));
        }
        CertificateRoots::None => return Ok(None),
        CertificateRoots::System => system_bundle()?,
        CertificateRoots::File(file) => file.clone(),
    };
    let certificates = read_certificates(&file)?;
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(certificates.iter().cloned());
    if added == 0 {
        return Err(Error::corrupt(format!(
            "there is no usable certificate in {file:?}"
        )));
    }
    Ok(Some(Trusted {
        roots,
        certificates,
    }))
}

/// Returns the file of the system's trusted certificates.
fn system_bundle() -> Result<PathBuf> {
    let named = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let mut files = named.into_iter().chain(BUNDLES.iter().map(PathBuf::from));
    files.find(|file| file.exists()).ok_or_else(|| {
        Error::new(
            ErrorKind::NotFound,
            "cannot find the certificates that this system trusts",
        )
        .hint("name a file of them with SSL_CERT_FILE")
    })
}

fn read_certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let text = fs::read(file)
        .map_err(|error| Error::io(format!("could not read the certificate {file:?}"), error))?;
    CertificateDer::pem_slice_iter(&text)
        .collect::<std::result::Result<Vec<_>, _>>()
        .map_err(|error| {
            Error::corrupt(format!("cannot read the certificate {file:?}")).because(error)
        })
}

/// Reads a private key. As in libpq, only this user may be able to read it; root's key may be readable by a
/// group.
fn read_private_key(file: &Path) -> Result<PrivateKeyDer<'static>> {
    let Some(text) = read_private(file)
        .map_err(|error| Error::io(format!("could not read the private key {file:?}"), error))?
    else {
        return Err(Error::new(
            ErrorKind::Permission,
            format!("the private key {file:?} can be read by others"),
        )
        .hint("make it u=rw (0600), or u=rw,g=r (0640) if root owns it"));
    };
    PrivateKeyDer::from_pem_slice(&text).map_err(|error| {
        Error::corrupt(format!("cannot read the private key {file:?}"))
            .because(error)
            .hint("an encrypted key cannot be used; `openssl pkey` removes the password")
    })
}

/// Message for a server certificate of X.509 version 1, which cannot state its purpose, if it is to
/// be verified or TLS is older than 1.3.
const SERVER_VERSION_1: &str = "the server's certificate is of version 1 of X.509, which works \
    only with TLS 1.3 and without verification: \
    `openssl x509 -req` makes one of version 3 if -extfile names a file with a subjectAltName";

/// Message for a client certificate of X.509 version 1.
const CLIENT_VERSION_1: &str = "the certificate is of version 1 of X.509, which cannot be a \
    client certificate: `openssl x509 -req` makes one of \
    version 3 if -extfile names a file with a line like subjectAltName=DNS:client";

/// Returns the error for a client certificate that cannot be used.
fn client_certificate_error(cert: &Path, key: &Path, error: rustls::Error) -> Error {
    let cannot = Error::new(
        ErrorKind::Usage,
        format!("cannot use {cert:?} with {key:?}"),
    );
    match read_certificates(cert) {
        Ok(all)
            if all
                .first()
                .is_some_and(|der| key_of_version_1(der).is_some()) =>
        {
            cannot.because(CLIENT_VERSION_1)
        }
        _ => cannot.because(error),
    }
}

/// Returns the error for a server certificate, explained if it is of version 1.
fn server_certificate_error(cert: &CertificateDer<'_>, error: rustls::Error) -> rustls::Error {
    if key_of_version_1(cert).is_some() {
        rustls::Error::General(SERVER_VERSION_1.to_owned())
    } else {
        error
    }
}

/// Returns the public key in a certificate of version 1, which is enough if the identity is not
/// checked. `None` for other versions.
fn key_of_version_1(cert: &CertificateDer<'_>) -> Option<SubjectPublicKeyInfoDer<'static>> {
    let cert = Certificate::from_der(cert).ok()?.tbs_certificate;
    let key = cert.subject_public_key_info.to_der().ok()?;
    (cert.version == Version::V1).then(|| key.into())
}

/// Root certificates, as a store and one by one.
#[derive(Debug)]
struct Trusted {
    roots: RootCertStore,
    certificates: Vec<CertificateDer<'static>>,
}

/// Checks a server's certificate as far as the mode says, and always that the server has the key of
/// its certificate.
#[derive(Debug)]
struct Verifier {
    trusted: Option<Trusted>,
    checks_name: bool,
    provider: Arc<CryptoProvider>,
}

impl Trusted {
    /// Checks the signatures and the dates of a certificate.
    fn verify(
        &self,
        cert: &ParsedCertificate<'_>,
        der: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
        provider: &CryptoProvider,
    ) -> std::result::Result<(), rustls::Error> {
        use CertificateError::{Expired, ExpiredContext, NotValidYet, NotValidYetContext};
        let algorithms = provider.signature_verification_algorithms.all;
        match verify_server_cert_signed_by_trust_anchor(
            cert,
            &self.roots,
            intermediates,
            now,
            algorithms,
        ) {
            Err(rustls::Error::InvalidCertificate(
                error @ (Expired | ExpiredContext { .. } | NotValidYet | NotValidYetContext { .. }),
            )) => Err(rustls::Error::InvalidCertificate(error)),
            // `openssl req -x509` makes a certificate that is its own authority; by the standard no
            // chain may end in one. Its presence among the roots is a stronger proof than a
            // signature.
            Err(_) if self.certificates.iter().any(|root| root == der) => Ok(()),
            checked => checked,
        }
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        if let Some(trusted) = &self.trusted {
            let cert = ParsedCertificate::try_from(end_entity)
                .map_err(|error| server_certificate_error(end_entity, error))?;
            trusted.verify(&cert, end_entity, intermediates, now, &self.provider)?;
            if self.checks_name {
                verify_server_name(&cert, server_name)?;
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        crypto::verify_tls12_signature(
            message,
            cert,
            signed,
            &self.provider.signature_verification_algorithms,
        )
        .map_err(|error| server_certificate_error(cert, error))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        match key_of_version_1(cert) {
            Some(key) => {
                crypto::verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
            }
            None => crypto::verify_tls13_signature(message, cert, signed, algorithms),
        }
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
