//! Options with which every command reaches storages and opens what is encrypted.

use super::values::{interval, rate};
use clap::Args;
use fullbore_crypt::{KeyOptions, parse_fingerprint};
use fullbore_format::{error::Result, key_kind::KeyKind};
use fullbore_storage::{
    CacheSpec, ClearUse, CloudEnvironment, CloudSettings, MediaChange, MediaChanger,
    RepositoryTrust, StorageAccess, Storages, StoreSettings,
    ssh::HostSettings,
    wire::{TlsFiles, WireLimits},
};
use std::{
    env,
    ffi::{OsStr, OsString},
    io::{IsTerminal, stdin},
    num::{NonZeroU64, NonZeroUsize},
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// How storages are reached, with every command.
#[derive(Debug, Args, Clone, Default)]
#[command(next_help_heading = "Storage")]
pub(super) struct StorageArgs {
    /// Open an encrypted repository with this key (repeatable)
    ///
    /// A key is an age identity or an ssh-ed25519 key.
    #[arg(
        long,
        value_name = "FILE",
        global = true,
        display_order = 910,
        hide_short_help = true
    )]
    key: Vec<PathBuf>,
    /// Open an encrypted repository with the passphrase in this file
    #[arg(
        long,
        value_name = "FILE",
        global = true,
        display_order = 911,
        hide_short_help = true
    )]
    passphrase_file: Option<PathBuf>,
    /// Accept only repository keys with this fingerprint (repeatable)
    ///
    /// `init` and `key list` print the fingerprint. This host remembers the fingerprint of each
    /// encrypted repository, and refuses other keys without this option. Give it where nothing is
    /// remembered yet, or to accept other keys.
    #[arg(long, value_name = "FINGERPRINT", value_parser = fingerprint, global = true, display_order = 911, hide_short_help = true)]
    expect_keys: Vec<String>,
    /// A setting of object stores, such as endpoint=URL (repeatable)
    ///
    /// STORE,KEY=VALUE is a setting of one store, such as s3://offsite,profile=NAME: a command that
    /// uses two stores can reach each of them in its own way.
    #[arg(
        long,
        value_name = "[STORE,]KEY=VALUE",
        global = true,
        display_order = 912,
        hide_short_help = true
    )]
    storage: Vec<String>,
    /// Parallel connections to a host, or requests to an object store
    ///
    /// Only connections that carry data count. The default is auto.
    #[arg(long, value_name = "N|auto", value_parser = connections, global = true, display_order = 913, hide_short_help = true)]
    connections: Option<Connections>,
    /// Send at most this many bytes a second to other hosts and stores
    #[arg(long, value_name = "SIZE", value_parser = rate, global = true, display_order = 914, hide_short_help = true)]
    limit_upload: Option<NonZeroU64>,
    /// Receive at most this many bytes a second from hosts and stores
    #[arg(long, value_name = "SIZE", value_parser = rate, global = true, display_order = 915, hide_short_help = true)]
    limit_download: Option<NonZeroU64>,
    /// Keep a cache of stores and other hosts in this directory
    ///
    /// The cache holds the roots and manifests that were read or written. The default is fullbore in the XDG
    /// cache directory.
    #[arg(
        long,
        value_name = "DIR",
        global = true,
        display_order = 916,
        hide_short_help = true
    )]
    cache_dir: Option<PathBuf>,
    /// The command that changes media of volumes
    ///
    /// It is split at spaces and started without a shell. FULLBORE_MEDIA_LABEL and other variables tell
    /// which volume is needed. Exit code 0 means that it is there, 1 that a person is asked, and
    /// others that it does not come.
    #[arg(
        long,
        value_name = "COMMAND",
        global = true,
        display_order = 930,
        hide_short_help = true
    )]
    change_command: Option<String>,
    /// Run this script for the next volume, as dump does with -F
    ///
    /// It gets the directory of the volumes and the number of the volume. Exit code 0 means that it is
    /// there, 1 that a person is asked, and others that it does not come.
    #[arg(
        long,
        value_name = "FILE",
        value_hint = clap::ValueHint::FilePath,
        global = true,
        display_order = 931,
        hide_short_help = true,
        conflicts_with = "change_command"
    )]
    dump_script: Option<PathBuf>,
    /// Load volumes with mtx from this changer
    ///
    /// Volumes are found by their barcodes, which are their names without the endings.
    #[arg(
        long,
        value_name = "/dev/sgN",
        value_hint = clap::ValueHint::FilePath,
        global = true,
        display_order = 932,
        hide_short_help = true,
        conflicts_with_all = ["change_command", "dump_script"]
    )]
    changer: Option<PathBuf>,
    /// Stop a command that changes media after this time [default: 1h]
    #[arg(
        long,
        value_name = "TIME",
        value_parser = interval,
        global = true,
        display_order = 933,
        hide_short_help = true
    )]
    change_timeout: Option<std::time::Duration>,
    /// Keep catalogs of volumes in this directory
    ///
    /// With a catalog, list and restore --plan need no volume. The default is in the state directory.
    #[arg(
        long,
        value_name = "DIR",
        global = true,
        display_order = 934,
        hide_short_help = true
    )]
    catalog: Option<PathBuf>,
    /// Keep no cache of stores and other hosts
    #[arg(
        long,
        global = true,
        display_order = 917,
        hide_short_help = true,
        conflicts_with = "cache_dir"
    )]
    no_cache: bool,
    /// The command that reaches other hosts [default: FULLBORE_SSH or ssh]
    ///
    /// The command is split at spaces.
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
    /// Copy this program to other hosts, and use it there
    ///
    /// It is copied into the cache of the user, unless it is there.
    #[arg(
        long,
        global = true,
        display_order = 920,
        hide_short_help = true,
        conflicts_with = "far_program"
    )]
    install_far: bool,
    /// The certificate of this host for fullbore://, in PEM
    ///
    /// `serve --listen` uses it too.
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
    /// The authorities that sign certificates of the other side, in PEM
    #[arg(
        long,
        value_name = "FILE",
        global = true,
        display_order = 923,
        hide_short_help = true
    )]
    tls_ca: Option<PathBuf>,
}

/// The options of this process as words, see [`words_of_process`].
static WORDS: OnceLock<Vec<OsString>> = OnceLock::new();

/// Returns the options with which this process reaches storages, for a command that runs later.
pub(super) fn words_of_process() -> Vec<OsString> {
    WORDS.get().cloned().unwrap_or_default()
}

/// Returns the program and the options with which a server reaches the repository later: of the user that restores.
pub(super) fn fetch_words() -> Vec<OsString> {
    let program = env::current_exe().unwrap_or_else(|_| "fullbore".into());
    let mut words = vec![program.into_os_string()];
    words.extend(words_of_process());
    words
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
    fn is_kept(self) -> Option<fn(&str) -> bool> {
        match self {
            Self::Documents => Some(|key| KeyKind::of(key).is_cached()),
            Self::Bases => Some(|key| KeyKind::of(key).is_cached_for_backups()),
            Self::Nothing => None,
        }
    }
}

/// The options of storages that a command uses.
#[derive(Debug, Clone, Copy)]
pub(super) struct StorageNeeds {
    pub(super) cache: CacheUse,
    pub(super) clear: ClearUse,
    /// It makes a repository: keys that this host has not seen are new ones.
    pub(super) accepts_other_keys: bool,
}

/// The directory for caches of the user; none if the environment names no home.
fn default_cache_dir(environment: &CloudEnvironment) -> Option<PathBuf> {
    let home = || absolute_dir(environment, "HOME");
    let caches = absolute_dir(environment, "XDG_CACHE_HOME");
    let caches = caches.or_else(|| Some(home()?.join(".cache")))?;
    Some(caches.join("fullbore"))
}

fn absolute_dir(environment: &CloudEnvironment, name: &str) -> Option<PathBuf> {
    let dir = environment.get(name).map(PathBuf::from);
    dir.filter(|dir| dir.is_absolute())
}

/// Returns the state directory of this user: `FULLBORE_STATE_DIR`, or `fullbore` in the directory that XDG says.
fn state_dir() -> Option<PathBuf> {
    let variable = |name| env::var_os(name).filter(|value| !value.is_empty());
    if let Some(dir) = variable("FULLBORE_STATE_DIR") {
        return Some(dir.into());
    }
    let base = variable("XDG_STATE_HOME").map(PathBuf::from);
    let base = base.or_else(|| Some(Path::new(&variable("HOME")?).join(".local/state")))?;
    Some(base.join("fullbore"))
}

/// A number of connections, or as many as are useful.
#[derive(Debug, Clone, Copy)]
struct Connections(Option<NonZeroUsize>);

fn fingerprint(text: &str) -> Result<String, String> {
    parse_fingerprint(text).ok_or_else(|| {
        "32 hexadecimal digits in groups of four, as `fullbore key list` prints them".to_owned()
    })
}

fn connections(text: &str) -> Result<Connections, String> {
    if text == "auto" {
        return Ok(Connections(None));
    }
    text.parse()
        .map(|number| Connections(Some(number)))
        .map_err(|_| "a number above 0, or auto".to_owned())
}

impl StorageArgs {
    /// Returns how the command reaches storages.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for a setting that does not exist.
    pub(super) fn storages(&self, needs: StorageNeeds) -> Result<Storages> {
        let environment = CloudEnvironment::of_process();
        let connections = self.connections.and_then(|connections| connections.0);
        let mut cloud = CloudSettings::from_environment(&environment)?;
        // An option wins over the variable of the environment.
        cloud.connections = connections.or(cloud.connections);
        cloud.upload_limit = self.limit_upload.or(cloud.upload_limit);
        cloud.download_limit = self.limit_download.or(cloud.download_limit);
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
            connections,
            limits: WireLimits::new(self.limit_upload, self.limit_download),
            tls: TlsFiles {
                certificate: self.tls_cert.clone(),
                key: self.tls_key.clone(),
                authorities: self.tls_ca.clone(),
            },
        };
        let cache = self.cache(&environment, needs.cache);
        let cache_dir = self.caches_in(&environment);
        let trust = RepositoryTrust {
            expected_keys: self.expect_keys.clone(),
            accepts_others: needs.accepts_other_keys,
            clear: needs.clear,
        };
        let _ = WORDS.set(self.words());
        Ok(Storages::new(StorageAccess {
            cloud: StoreSettings::new(cloud, &self.storage)?,
            environment,
            keys,
            cache,
            hosts,
            trust,
            change: self.media_change(),
            catalog: self.catalog.clone(),
            state_dir: state_dir(),
            cache_dir,
        }))
    }

    /// Returns how media are changed.
    fn media_change(&self) -> MediaChange {
        let words = |command: &String| command.split_whitespace().map(OsString::from).collect();
        let command = self.change_command.as_ref().map(words);
        let by = command
            .filter(|words: &Vec<OsString>| !words.is_empty())
            .map(MediaChanger::Command)
            .or_else(|| self.dump_script.clone().map(MediaChanger::DumpScript))
            .or_else(|| self.changer.clone().map(MediaChanger::Robot));
        MediaChange {
            by: by.unwrap_or_default(),
            patience: self.change_timeout,
        }
    }

    /// The options that a command needs which clap does not read.
    pub(super) fn of_keys(
        key: Vec<PathBuf>,
        passphrase_file: Option<PathBuf>,
        storage: Vec<String>,
    ) -> Self {
        Self {
            key,
            passphrase_file,
            storage,
            ..Self::default()
        }
    }

    /// Returns these options as words, with whole paths: for a command that runs later, in another directory.
    pub(super) fn words(&self) -> Vec<OsString> {
        let mut words = Vec::new();
        let passphrase_file = self
            .passphrase_file
            .iter()
            .map(|path| ("--passphrase-file", path));
        let files = self
            .key
            .iter()
            .map(|path| ("--key", path))
            .chain(passphrase_file);
        let certificates = [
            ("--tls-cert", &self.tls_cert),
            ("--tls-key", &self.tls_key),
            ("--tls-ca", &self.tls_ca),
        ];
        let certificates = certificates
            .into_iter()
            .filter_map(|(option, path)| Some((option, path.as_ref()?)));
        for (option, path) in files.chain(certificates) {
            add_option(option, absolute_word(path), &mut words);
        }
        for (option, values) in [
            ("--expect-keys", &self.expect_keys),
            ("--storage", &self.storage),
        ] {
            values
                .iter()
                .for_each(|value| add_option(option, value.into(), &mut words));
        }
        for (option, value) in [("--ssh", &self.ssh), ("--far-program", &self.far_program)] {
            value
                .iter()
                .for_each(|value| add_option(option, value.into(), &mut words));
        }
        words
    }

    /// The directory of caches.
    fn caches_in(&self, environment: &CloudEnvironment) -> Option<PathBuf> {
        if self.no_cache {
            return None;
        }
        let dir = self.cache_dir.clone();
        dir.or_else(|| default_cache_dir(environment))
    }

    fn cache(&self, environment: &CloudEnvironment, of: CacheUse) -> Option<CacheSpec> {
        Some(CacheSpec {
            dir: self.caches_in(environment)?,
            max_bytes: CACHE_BYTES,
            is_kept: of.is_kept()?,
        })
    }
}

fn add_option(option: &str, value: OsString, words: &mut Vec<OsString>) {
    let word = [OsStr::new(option), OsStr::new("="), &value];
    words.push(word.into_iter().collect());
}

fn absolute_word(path: &Path) -> OsString {
    path.canonicalize()
        .unwrap_or_else(|_| path.to_owned())
        .into_os_string()
}
