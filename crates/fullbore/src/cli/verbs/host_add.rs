//! `fullbore host add`: lets a host add backups, and prints a script that sets it up.
//!
//! The script writes files of mode 0600 into `/etc/fullbore`. Every value of it is checked or quoted, so that a name cannot become a
//! command on the host.

use super::{
    host::NamedHost,
    host_certificate::{HostCertificate, make_certificate},
    key_change::{ALL_KEYS, NewRecipient, RepositoryKeys},
};
use crate::cli::output::aside;
use fullbore_crypt::{Access, new_identity};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    text::{self, duration},
};
use fullbore_platform as platform;
use fullbore_storage::{Location, SealedObjects, Storages};
use std::{io::Write, path::PathBuf, time::Duration};

/// Where the script puts files.
const DIR: &str = "/etc/fullbore";
/// Ends each file in the script. No line of them can be this one: values have no line breaks.
const END: &str = "END-OF-FILE";

/// The enrolment of a host.
pub(super) struct HostAdd<'a> {
    pub(super) storages: &'a Storages,
    pub(super) host: NamedHost,
    pub(super) at: Option<String>,
    pub(super) sources: Vec<String>,
    pub(super) every: Duration,
    pub(super) recipient: Option<String>,
    pub(super) ssh_key: Option<String>,
    pub(super) ca: Option<PathBuf>,
    pub(super) days: u32,
}

/// A file for the host, and its content.
type HostFile = (String, String);

impl HostAdd<'_> {
    /// Adds the put key, and prints the script to `out`. All else is on standard error.
    ///
    /// # Errors
    /// Those of adding the key, of openssl, and of `out`; [`ErrorKind::Usage`] for values that no profile can have.
    pub(super) fn run(&self, out: &mut dyn Write) -> Result<()> {
        let at = self.location()?;
        self.check_texts(&at)?;
        let name = &self.host.name;
        let objects = self.storages.repository_at(&self.host.repository)?;
        let fingerprint = objects
            .as_sealed()
            .and_then(SealedObjects::ring)
            .map(|ring| ring.fingerprint());
        let certificate = match &self.ca {
            Some(ca) => Some(make_certificate(ca, name, self.days)?),
            None => None,
        };
        let (key, recipient) = match (objects.as_sealed().is_some(), &self.recipient) {
            (false, None) => (None, None),
            (false, Some(_)) => {
                let message = "cannot add a put key: the repository is not encrypted";
                return Err(Error::new(ErrorKind::Usage, message).hint("leave --for out"));
            }
            (true, Some(recipient)) => (None, Some(recipient.clone())),
            (true, None) => {
                let (secret, recipient) = new_identity();
                (Some(secret), Some(recipient))
            }
        };
        let needs_key = recipient.is_some() && key.is_none();
        let mut files: Vec<HostFile> = Vec::new();
        files.extend(key.map(|key| (format!("{DIR}/{name}.key"), format!("{}\n", *key))));
        files.extend(
            certificate
                .as_ref()
                .into_iter()
                .flat_map(|made| self.certificate_files(made)),
        );
        let profile = self.profile(&at, recipient.is_some(), fingerprint.as_deref());
        files.push((format!("{DIR}/{name}.toml"), profile));
        // The key first: a script without it would be of no use.
        if let Some(recipient) = recipient {
            self.add_key(recipient)?;
        }
        self.say_ssh_line(&at);
        self.print(&files, needs_key, out)
    }

    /// Returns how the host reaches the repository.
    fn location(&self) -> Result<String> {
        if let Some(at) = &self.at {
            let location = Location::parse(at.as_ref())?;
            if location.as_local().is_some_and(|path| !path.is_absolute()) {
                let message = format!("cannot use --at {at:?}");
                return Err(Error::new(ErrorKind::Usage, message).because(
                    "on the host it would begin anywhere: it is neither an absolute path nor a URL",
                ));
            }
            if matches!(location, Location::Server(_)) && self.ca.is_none() {
                aside("note: the host needs a certificate for that server: --ca DIR makes one");
            }
            return Ok(at.clone());
        }
        let location = Location::parse(&self.host.repository)?;
        let Some(path) = location.as_local() else {
            return Ok(location.to_string().trim_matches('"').to_owned());
        };
        let failed = |error| Error::io(format!("could not find {path:?}"), error);
        let path = path.canonicalize().map_err(failed)?;
        Ok(format!("ssh://{}{}", platform::host_name(), path.display()))
    }

    fn check_texts(&self, at: &str) -> Result<()> {
        let ssh_key = self.ssh_key.iter().map(String::as_str);
        let texts = self
            .sources
            .iter()
            .map(String::as_str)
            .chain([at])
            .chain(ssh_key);
        for text in texts {
            if text.chars().any(char::is_control) {
                let message = format!("cannot write {text:?} into a profile");
                return Err(
                    Error::new(ErrorKind::Usage, message).because("it has control characters")
                );
            }
        }
        if let Some(key) = self.ssh_key.iter().find(|key| !is_ssh_key(key)) {
            let message = format!("cannot use --ssh-key {key:?}");
            return Err(Error::new(ErrorKind::Usage, message)
                .because("it is not a public key of ssh")
                .hint(
                    "give the line of ~/.ssh/id_ed25519.pub of the host: \"ssh-ed25519 AAAA…\"",
                ));
        }
        match self
            .sources
            .iter()
            .find(|source| !source.starts_with('/') && !source.starts_with("postgres"))
        {
            Some(source) => Err(Error::new(
                ErrorKind::Usage,
                format!("cannot back up {source:?} of a host"),
            )
            .because("it is neither an absolute path nor postgres://")),
            None => Ok(()),
        }
    }

    fn certificate_files(&self, made: &HostCertificate) -> [HostFile; 3] {
        let name = &self.host.name;
        [
            (format!("{DIR}/{name}.pem"), made.certificate.clone()),
            (format!("{DIR}/{name}-tls.key"), made.key.clone()),
            (format!("{DIR}/{name}-ca.pem"), made.authority.clone()),
        ]
    }

    fn profile(&self, at: &str, is_sealed: bool, fingerprint: Option<&str>) -> String {
        let name = &self.host.name;
        let sources: Vec<String> = self
            .sources
            .iter()
            .map(|source| toml_text(source))
            .collect();
        let mut lines = vec![
            format!("repository = {}", toml_text(at)),
            format!("sources = [{}]", sources.join(", ")),
            "# This host adds only. The server forgets, prunes and verifies.".to_owned(),
            "steps = [\"backup\"]".to_owned(),
        ];
        lines.extend(is_sealed.then(|| format!("key = \"{DIR}/{name}.key\"")));
        lines.extend(fingerprint.map(|fingerprint| format!("expect-keys = \"{fingerprint}\"")));
        if self.ca.is_some() {
            lines.push(format!("tls-cert = \"{DIR}/{name}.pem\""));
            lines.push(format!("tls-key = \"{DIR}/{name}-tls.key\""));
            lines.push(format!("tls-ca = \"{DIR}/{name}-ca.pem\""));
        }
        lines.push("\n[backup]".to_owned());
        lines.push(format!("host = \"{name}\""));
        lines.push(format!("every = \"{}\"", duration::exact(self.every)));
        lines.join("\n") + "\n"
    }

    fn add_key(&self, recipient: String) -> Result<()> {
        let keys = RepositoryKeys {
            storages: self.storages,
            location: Location::parse(&self.host.repository)?,
        };
        let mut said = Vec::new();
        keys.add(
            &self.host.name,
            (&NewRecipient::Named(recipient), Access::Put),
            &mut said,
        )?;
        // With many hosts, the list of all keys would hide the rest; `key list` has it.
        let said = String::from_utf8_lossy(&said);
        let own = said.lines().take_while(|line| *line != ALL_KEYS);
        own.for_each(aside);
        Ok(())
    }

    fn say_ssh_line(&self, at: &str) {
        if !at.starts_with("ssh://") {
            return;
        }
        let name = &self.host.name;
        let repository = match Location::parse(at.as_ref()) {
            Ok(Location::Ssh { path, .. }) => path.display().to_string(),
            _ => return,
        };
        let Some(key) = &self.ssh_key else {
            aside(format_args!(
                "note: ssh lets {name} do everything that its user may; --ssh-key KEY prints a line that lets it only add"
            ));
            return;
        };
        aside("add this line to ~/.ssh/authorized_keys of the user of the repository:");
        aside(format_args!(
            "restrict,command=\"fullbore serve --stdio --allow append:{repository} --host {name}\" {key}"
        ));
    }

    fn print(&self, files: &[HostFile], needs_key: bool, out: &mut dyn Write) -> Result<()> {
        let name = &self.host.name;
        let has_secrets = files.iter().any(|(path, _)| path.ends_with(".key"));
        let mut line = |line: &str| text::line(out, line);
        line("#!/bin/sh")?;
        line(&format!(
            "# Sets up the host {name} for backups. Run it there as root.{}",
            if has_secrets {
                " It holds secrets."
            } else {
                ""
            }
        ))?;
        line("set -eu")?;
        line("umask 077")?;
        line(&format!("mkdir -p {DIR}"))?;
        for (path, content) in files {
            line(&format!("cat >{path} <<'{END}'"))?;
            content.lines().try_for_each(&mut line)?;
            line(END)?;
        }
        line(&format!("fullbore config check --config {DIR}/{name}.toml"))?;
        if needs_key {
            line(&format!(
                "[ -e {DIR}/{name}.key ] || echo \"put the key of {name} into {DIR}/{name}.key, with mode 0600: no backup works before\" >&2"
            ))?;
        }
        line("if [ -d /run/systemd/system ] && [ -e /lib/systemd/system/fullbore@.timer ]; then")?;
        line(&format!("    systemctl enable --now fullbore@{name}.timer"))?;
        line("else")?;
        line(&format!(
            "    echo \"no timer was started: run \\`fullbore run --config {DIR}/{name}.toml\\` each day, such as by cron\" >&2"
        ))?;
        line("fi")
    }
}

/// Returns whether a text is a public key as OpenSSH writes it: its kind, the key in base64, and a comment.
fn is_ssh_key(text: &str) -> bool {
    let mut words = text.split(' ');
    let kind = words.next().unwrap_or_default();
    let key = words.next().unwrap_or_default();
    let is_base64 = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
    let is_kind = ["ssh-", "ecdsa-sha2-", "sk-"]
        .iter()
        .any(|start| kind.starts_with(start));
    is_kind && key.starts_with("AAAA") && key.bytes().all(is_base64) && !text.contains(['"', '\\'])
}

/// A string of TOML. Strings of JSON without control characters are strings of TOML.
fn toml_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
