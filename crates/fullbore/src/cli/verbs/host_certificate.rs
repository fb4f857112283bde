//! Makes a certificate for a host, with the program openssl.

use fullbore_format::error::{Error, ErrorKind, Result};
use std::{
    fs,
    io::ErrorKind::NotFound,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A certificate with its key and the authority that made it, as PEM.
pub(super) struct HostCertificate {
    pub(super) certificate: String,
    pub(super) key: String,
    pub(super) authority: String,
}

/// A directory of this user alone, which is removed when it is dropped.
struct SecretDir(PathBuf);

impl SecretDir {
    fn new() -> Result<Self> {
        // Others cannot guess its name before it is there.
        let random = fullbore_crypt::Secret::random()?.to_hex();
        let path = std::env::temp_dir().join(format!("fullbore-host-{}", &random[..16]));
        let mut builder = fs::DirBuilder::new();
        let made = builder.mode(0o700).create(&path);
        made.map_err(|error| Error::io(format!("could not make {path:?}"), error))?;
        Ok(Self(path))
    }

    fn read(&self, name: &str) -> Result<String> {
        let path = self.0.join(name);
        fs::read_to_string(&path)
            .map_err(|error| Error::io(format!("could not read {path:?}"), error))
    }
}

impl Drop for SecretDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0); // nothing else can be done about it
    }
}

/// Makes a certificate with the common name `name`. `ca` has `ca.pem` and `ca.key`.
///
/// # Errors
/// [`ErrorKind::NotFound`] without openssl or these files; [`ErrorKind::System`] if openssl fails.
pub(super) fn make_certificate(ca: &Path, name: &str, days: u32) -> Result<HostCertificate> {
    // openssl runs in a directory of its own.
    let ca = std::path::absolute(ca)
        .map_err(|error| Error::io(format!("could not find {ca:?}"), error))?;
    let authority_file = ca.join("ca.pem");
    let read = fs::read_to_string(&authority_file);
    let authority =
        read.map_err(|error| Error::io(format!("could not read {authority_file:?}"), error))?;
    let dir = SecretDir::new()?;
    let extensions = format!(
        "subjectAltName=DNS:{name}\nbasicConstraints=CA:FALSE\nextendedKeyUsage=clientAuth\n"
    );
    let extension_file = dir.0.join("ext");
    let written = fs::write(&extension_file, extensions);
    written.map_err(|error| Error::io(format!("could not write {extension_file:?}"), error))?;
    let (ca_pem, ca_key) = (
        authority_file.display().to_string(),
        ca.join("ca.key").display().to_string(),
    );
    let days = days.to_string();
    let subject = format!("/CN={name}");
    let curve = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ];
    let files = ["-keyout", "key", "-out", "csr", "-subj", &subject];
    run_openssl(&dir, &[&["req"], &curve[..], &files[..]].concat())?;
    let signed = [
        "x509", "-req", "-in", "csr", "-out", "pem", "-extfile", "ext", "-days", &days,
    ];
    let by = [
        "-CA",
        &ca_pem,
        "-CAkey",
        &ca_key,
        "-CAserial",
        "serial",
        "-CAcreateserial",
    ];
    run_openssl(&dir, &[&signed[..], &by[..]].concat())?;
    Ok(HostCertificate {
        certificate: dir.read("pem")?,
        key: dir.read("key")?,
        authority,
    })
}

fn run_openssl(dir: &SecretDir, words: &[&str]) -> Result<()> {
    let mut command = Command::new("openssl");
    command.args(words).current_dir(&dir.0).stdin(Stdio::null());
    let ran = command.output().map_err(|error| match error.kind() {
        NotFound => Error::new(ErrorKind::NotFound, "could not find the program openssl")
            .hint("install it, or make the certificate elsewhere and leave --ca out"),
        _ => Error::io("could not run openssl", error),
    })?;
    if ran.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    let last = said.lines().last().unwrap_or("it said nothing").to_owned();
    Err(Error::new(ErrorKind::System, "openssl made no certificate").because(last))
}
