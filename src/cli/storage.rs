//! Options for object stores and encryption, and the decision whether a new repository is encrypted.

use super::{args::Command, values::rate};
use crate::{
    archive::object::Sealing,
    crypt::{KeyOptions, UserRecipient, parse_recipients},
    error::{Error, ErrorKind, Result},
    format::layout::{BACKUPS, FORGOTTEN, MANIFEST, NOTES, REPOSITORY, ROOT},
    plan::{OpenStorage, Recipients, SEALED_ENDING, SinkSpec},
    repo::{open::place, writer::must_be_possible},
    storage::{
        CacheSpec, CloudEnvironment, CloudSettings, Location,
        access::{
            StorageAccess, encrypt_new, has_keys, new_passphrase, set_access, stored_objects,
        },
        keys::is_encrypted,
        probe,
        ssh::HostSettings,
        wire::{TlsFiles, WireLimits},
    },
};
use clap::Args;
use std::{
    env,
    ffi::OsStr,
    fs,
    io::{IsTerminal, stdin},
    num::{NonZeroU64, NonZeroUsize},
    os::unix::ffi::OsStrExt,
    path::PathBuf,
};

/// How storages are reached, with every command.
#[derive(Debug, Args, Clone)]
#[command(next_help_heading = "Storage")]
pub(super) struct StorageArgs {
    /// Read an encrypted repository with this key: an age identity or an ssh-ed25519 key; can be repeated
    #[arg(long, value_name = "FILE", global = true, display_order = 910)]
    key: Vec<PathBuf>,
    /// Read an encrypted repository with the passphrase in this file
    #[arg(long, value_name = "FILE", global = true, display_order = 911)]
    passphrase_file: Option<PathBuf>,
    /// A setting of object stores, such as endpoint=URL or region=NAME; can be repeated
    #[arg(
        long,
        value_name = "KEY=VALUE",
        global = true,
        display_order = 912,
        hide_short_help = true
    )]
    storage: Vec<String>,
    /// Connections to another host that carry data, or requests to an object store at the same time [default: auto]
    #[arg(long, value_name = "N|auto", value_parser = connections, global = true, display_order = 913, hide_short_help = true)]
    connections: Option<Connections>,
    /// Bytes a second sent to an object store or another host, at most
    #[arg(long, value_name = "SIZE", value_parser = rate, global = true, display_order = 914, hide_short_help = true)]
    limit_upload: Option<NonZeroU64>,
    /// Bytes a second received from an object store or another host, at most
    #[arg(long, value_name = "SIZE", value_parser = rate, global = true, display_order = 915, hide_short_help = true)]
    limit_download: Option<NonZeroU64>,
    /// Keep what was read of roots and manifests in object stores in this directory [default: fullbore in the XDG cache directory]
    #[arg(
        long,
        value_name = "DIR",
        global = true,
        display_order = 916,
        hide_short_help = true
    )]
    cache_dir: Option<PathBuf>,
    /// Keep nothing of object stores on this host
    #[arg(
        long,
        global = true,
        display_order = 917,
        hide_short_help = true,
        conflicts_with = "cache_dir"
    )]
    no_cache: bool,
    /// The command that reaches other hosts, split at spaces [default: FULLBORE_SSH, or ssh]
    #[arg(
        long,
        value_name = "COMMAND",
        global = true,
        display_order = 918,
        hide_short_help = true
    )]
    ssh: Option<String>,
    /// The path of fullbore on other hosts [default: fullbore]
    #[arg(
        long,
        value_name = "PATH",
        global = true,
        display_order = 919,
        hide_short_help = true
    )]
    far_program: Option<String>,
    /// Copy this program into the cache of the user on other hosts, unless it is there, and use it
    #[arg(
        long,
        global = true,
        display_order = 920,
        hide_short_help = true,
        conflicts_with = "far_program"
    )]
    install_far: bool,
    /// The certificate of this host, for fullbore:// and `serve --listen`: PEM
    #[arg(
        long,
        value_name = "FILE",
        global = true,
        display_order = 921,
        hide_short_help = true
    )]
    tls_cert: Option<PathBuf>,
    /// The private key of --tls-cert
    #[arg(
        long,
        value_name = "FILE",
        global = true,
        display_order = 922,
        hide_short_help = true
    )]
    tls_key: Option<PathBuf>,
    /// The authorities that must have signed the certificate of the other side
    #[arg(
        long,
        value_name = "FILE",
        global = true,
        display_order = 923,
        hide_short_help = true
    )]
    tls_ca: Option<PathBuf>,
}

/// Bytes of all that is kept of object stores.
const CACHE_BYTES: u64 = 1 << 30;

/// What a command may take from the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CacheUse {
    /// Roots, those of forgotten backups too, notes and pages: the command only reads.
    Documents,
    /// Roots and pages: which there are is listed anew before they are relied on.
    Bases,
    /// Nothing: the command checks or changes what is stored.
    Nothing,
}

impl CacheUse {
    fn of(command: &Command) -> Self {
        match command {
            Command::List(_)
            | Command::Show(_)
            | Command::Stats(_)
            | Command::Cat(_)
            | Command::Find(_)
            | Command::Diff(_)
            | Command::Restore(_)
            | Command::Export(_) => Self::Documents,
            Command::Backup(_) => Self::Bases,
            _ => Self::Nothing,
        }
    }

    fn is_kept(self) -> Option<fn(&str) -> bool> {
        match self {
            Self::Documents => Some(is_document),
            Self::Bases => Some(|key| key == REPOSITORY || is_file(key, &[ROOT, MANIFEST])),
            Self::Nothing => None,
        }
    }
}

fn is_document(key: &str) -> bool {
    is_file(key, &[ROOT, NOTES, MANIFEST, FORGOTTEN])
}

fn is_file(key: &str, names: &[&str]) -> bool {
    let (dir, name) = key.rsplit_once('/').unwrap_or_default();
    dir.starts_with(BACKUPS) && names.contains(&name)
}

/// The directory for caches of the user; none if the environment names no home.
fn default_cache_dir(environment: &CloudEnvironment) -> Option<PathBuf> {
    let absolute = |name: &str| {
        environment
            .get(name)
            .map(PathBuf::from)
            .filter(|dir| dir.is_absolute())
    };
    let caches = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))?;
    Some(caches.join("fullbore"))
}

/// A number of connections, or as many as are useful.
#[derive(Debug, Clone, Copy)]
struct Connections(Option<NonZeroUsize>);

fn connections(text: &str) -> Result<Connections, String> {
    if text == "auto" {
        return Ok(Connections(None));
    }
    text.parse()
        .map(|number| Connections(Some(number)))
        .map_err(|_| "a number above 0, or auto".to_owned())
}

impl StorageArgs {
    /// Sets the access of this process to storages.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for a setting that does not exist.
    pub(super) fn apply(&self, command: &Command) -> Result<()> {
        let environment = CloudEnvironment::of_process();
        let mut cloud = CloudSettings::from_environment(&environment)?;
        for pair in &self.storage {
            cloud.set_pair(pair)?;
        }
        cloud.connections = self.connections.and_then(|connections| connections.0);
        cloud.upload_limit = self.limit_upload;
        cloud.download_limit = self.limit_download;
        let keys = KeyOptions {
            key_files: self.key.clone(),
            passphrase_file: self.passphrase_file.clone(),
            passphrase: None,
            may_ask: stdin().is_terminal(),
        }
        .with_environment();
        let hosts = HostSettings {
            command: self.ssh.clone().or_else(|| env::var("FULLBORE_SSH").ok()),
            far_program: self.far_program.clone(),
            installs: self.install_far,
            connections: cloud.connections,
            limits: WireLimits::new(self.limit_upload, self.limit_download),
            tls: TlsFiles {
                certificate: self.tls_cert.clone(),
                key: self.tls_key.clone(),
                authorities: self.tls_ca.clone(),
            },
        };
        let cache = self.cache(&environment, CacheUse::of(command));
        set_access(StorageAccess {
            cloud,
            keys,
            cache,
            hosts,
        });
        Ok(())
    }

    fn cache(&self, environment: &CloudEnvironment, of: CacheUse) -> Option<CacheSpec> {
        if self.no_cache {
            return None;
        }
        let dir = self.cache_dir.clone();
        Some(CacheSpec {
            dir: dir.or_else(|| default_cache_dir(environment))?,
            max_bytes: CACHE_BYTES,
            is_kept: of.is_kept()?,
        })
    }
}

/// Whether a new repository or an archive is encrypted. It stays so for ever.
#[derive(Debug, Args, Clone, Default)]
#[command(next_help_heading = "Storage")]
pub(super) struct EncryptArgs {
    /// Encrypt a new repository or an archive to age1…, "ssh-ed25519 AAAA…", or the recipients in @FILE; can be repeated
    #[arg(long, value_name = "RECIPIENT", conflicts_with_all = ["passphrase", "no_encryption"])]
    encrypt_to: Vec<String>,
    /// Encrypt a new repository or an archive with a passphrase: of --passphrase-file, FULLBORE_PASSPHRASE or the terminal
    #[arg(long, conflicts_with = "no_encryption")]
    passphrase: bool,
    /// Do not encrypt a new repository. In an object store, or beside a key, this option or one of the other two is needed
    #[arg(long)]
    no_encryption: bool,
}

impl EncryptArgs {
    fn is_wanted(&self) -> bool {
        self.passphrase || !self.encrypt_to.is_empty()
    }

    /// Whether [`EncryptArgs::apply`] depends on whether the destination is new.
    ///
    /// # Errors
    /// As [`Location::parse`].
    pub(super) fn asks_for_new(&self, word: &OsStr) -> Result<bool> {
        let is_cloud = matches!(Location::parse(word)?, Location::Cloud { .. });
        Ok(self.is_wanted() || is_cloud || has_keys())
    }

    /// Makes a destination encrypted if it is new and that is wanted. A dry run changes nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] if a repository that exists is clear, if a new one in an object store comes without a decision, and for
    /// other destinations.
    pub(super) fn apply(
        &self,
        to: SinkSpec,
        word: &OsStr,
        is_new: bool,
        no_create: bool,
        dry_run: bool,
    ) -> Result<SinkSpec> {
        let location = Location::parse(word)?;
        let refused = |why: &str| {
            Err(Error::new(ErrorKind::Usage, format!("cannot encrypt {location}")).because(why))
        };
        let keep_clear = |error: Error| {
            error.hint("make an encrypted one with `fullbore init`, and copy the backups with `fullbore copy`")
        };
        if to.storage().is_none() {
            return self.apply_to_stream(to, word);
        }
        let stored = stored_objects(&location)?;
        if !is_new {
            return match self.is_wanted() && !is_encrypted(&*stored)? {
                true => refused("it is a repository that is not encrypted, and stays so")
                    .map_err(keep_clear),
                false => Ok(to),
            };
        }
        self.check_decision(&location, no_create)?;
        if !self.is_wanted() || dry_run {
            return Ok(to);
        }
        must_be_possible(&*stored, no_create)?;
        if stored.as_local().is_none() && !probe(&*stored)? {
            return refused("its storage has no conditional writes, which the keys need");
        }
        let recipients = self.recipients()?;
        let Some((first, others)) = recipients.split_first() else {
            return refused("no recipient was given");
        };
        let sealed = encrypt_new(&location, first, others)?;
        Ok(SinkSpec::Repository(OpenStorage(sealed)))
    }

    /// Encrypts an archive or standard output. The name of an archive says whether it is.
    fn apply_to_stream(&self, to: SinkSpec, word: &OsStr) -> Result<SinkSpec> {
        let refused = |what: &str| Error::new(ErrorKind::Usage, format!("{what} {word:?}"));
        let has_ending = word.as_bytes().ends_with(SEALED_ENDING.as_bytes());
        match (&to, has_ending, self.is_wanted()) {
            (SinkSpec::Null, _, true) => {
                Err(refused("cannot encrypt").because("nothing is stored there"))
            }
            (SinkSpec::File(_), true, false) => Err(refused("cannot write")
                .because("its name says that it is encrypted")
                .hint("use --encrypt-to RECIPIENT or --passphrase, or leave .age out of the name")),
            (SinkSpec::File(_), false, true) => Err(refused("cannot encrypt")
                .because("the name of an encrypted archive ends in .age")
                .hint("use a name such as data.tar.zst.age")),
            (_, _, false) => Ok(to),
            (_, _, true) => {
                let recipients = self.recipients()?;
                if recipients.is_empty() {
                    return Err(refused("cannot encrypt").because("no recipient was given"));
                }
                Ok(SinkSpec::Sealed(to.into(), Recipients(recipients.into())))
            }
        }
    }

    /// As [`EncryptArgs::apply`], for the destination of a copy. What is encrypted does not become clear without a decision; a new
    /// destination of what no key was given for gets the same keys.
    ///
    /// # Errors
    /// As [`EncryptArgs::apply`].
    pub(super) fn apply_to_copy(
        &self,
        from: Sealing,
        to: SinkSpec,
        word: &OsStr,
        is_new: bool,
        no_create: bool,
    ) -> Result<SinkSpec> {
        if !is_new || no_create || from == Sealing::Clear {
            return self.apply(to, word, is_new, no_create, false);
        }
        if from == Sealing::Opened && (self.is_wanted() || self.no_encryption) {
            return self.apply(to, word, is_new, no_create, false);
        }
        let location = Location::parse(word)?;
        let what =
            format!("cannot make a repository at {location}: decide whether it is encrypted");
        match from {
            Sealing::Opened => Err(Error::new(ErrorKind::Usage, what)
                .because("the backup is encrypted")
                .hint("use --encrypt-to RECIPIENT, --passphrase or --no-encryption; it cannot be changed later")),
            _ if self.is_wanted() || self.no_encryption => {
                Err(Error::new(ErrorKind::Permission, format!("cannot store it otherwise at {location}"))
                    .because("the backup is encrypted, and no key was given that reads it")
                    .hint("give its key: --key FILE, or --passphrase-file FILE"))
            }
            _ => Ok(to),
        }
    }

    /// A new repository needs a decision in an object store, and wherever a key is given, which it would not be encrypted for.
    fn check_decision(&self, location: &Location, no_create: bool) -> Result<()> {
        if no_create || self.is_wanted() || self.no_encryption {
            return Ok(());
        }
        let why = if matches!(location, Location::Cloud { .. }) {
            "whoever has access to the store could read it"
        } else if has_keys() {
            "a key or passphrase only opens a repository that is encrypted"
        } else {
            return Ok(());
        };
        Err(Error::new(
            ErrorKind::Usage,
            format!("cannot make a repository at {location}: decide whether it is encrypted"),
        )
        .because(why)
        .hint("use --encrypt-to RECIPIENT, --passphrase or --no-encryption; it cannot be changed later"))
    }

    fn recipients(&self) -> Result<Vec<UserRecipient>> {
        if self.passphrase {
            return Ok(vec![new_passphrase()?]);
        }
        let mut recipients = Vec::new();
        for text in &self.encrypt_to {
            match text.strip_prefix('@') {
                Some(path) => {
                    let lines = fs::read_to_string(path)
                        .map_err(|e| Error::io(format!("could not read {path:?}"), e))?;
                    recipients.extend(parse_recipients(&lines, &format!("{path:?}"))?);
                }
                None => recipients.push(UserRecipient::parse(text)?),
            }
        }
        Ok(recipients)
    }
}

/// Returns whether the backup that is copied is encrypted.
///
/// # Errors
/// The storage's.
pub(super) fn sealing_of(from: &OsStr) -> Result<Sealing> {
    if from == "-" {
        return Ok(Sealing::Clear);
    }
    let (location, _) = place(from)?;
    if !location.is_repository() {
        return Ok(Sealing::Clear);
    }
    Ok(Sealing::of(&*location.objects()?))
}
