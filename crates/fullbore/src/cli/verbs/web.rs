//! `fullbore web`: shows backups in a browser, until it is ended.

use crate::cli::{
    command_line,
    options::{FRAME_BYTES, PERFORMANCE, PLAIN_EXIT_CODES, memory},
    output::{aside, printed},
    profile,
    storage::{CacheUse, StorageArgs, StorageNeeds, words_of_process},
};
use clap::{Args, FromArgMatches, ValueHint};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    text::size,
};
use fullbore_platform::{self as platform, child_environment::without_secrets, queue::start};
use fullbore_repository::{open::read_repository, root_index::IndexPlace};
use fullbore_storage::{
    ClearUse, Storages,
    wire::{TlsClients, TlsServer},
};
use fullbore_web::{
    http::{
        guard::{Entry, Guard},
        passwords::{PasswordFile, password_line},
        server::{Server, TlsSettings},
    },
    site::{ShownRepository, Site, SiteOptions},
};
use serde_json::json;
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};
use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, OpenOptions},
    io::{self, BufRead, Write},
    iter,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
    process::{Command, Stdio, exit, id},
    sync::{Arc, Mutex},
};

/// Options of a server that other hosts reach.
const TEAM: &str = "Team";

/// `fullbore web`.
#[derive(Debug, Args)]
#[command(after_help = PLAIN_EXIT_CODES)]
pub(in crate::cli) struct WebArgs {
    /// The repositories
    #[arg(value_name = "REPO", value_hint = ValueHint::DirPath, required_unless_present_any = ["hash_password", "profiles"])]
    repositories: Vec<OsString>,
    /// Also show the repositories of these profiles
    ///
    /// Each is reached with the options of its profile.
    #[arg(long, value_name = "NAME[,NAME]", value_delimiter = ',')]
    profiles: Vec<OsString>,
    /// Also restore into directories of this host, when a page asks
    ///
    /// Whoever has a session can then write files with the rights of this process, into new or
    /// empty directories.
    #[arg(long)]
    allow_restore: bool,
    /// Only print the address
    #[arg(long)]
    no_browser: bool,
    /// Listen here instead of at a free port of 127.0.0.1
    ///
    /// Other addresses than loopback need TLS, and --password-file or certificates of --tls-ca.
    #[arg(long, value_name = "ADDR:PORT", help_heading = TEAM)]
    listen: Option<SocketAddr>,
    /// A name of this server in the address of a browser (repeatable)
    ///
    /// Requests with another name are refused. 0.0.0.0 and [::] need a name.
    #[arg(long, value_name = "HOST", help_heading = TEAM)]
    name: Vec<String>,
    /// Let in people with a name and password of this file
    ///
    /// Only its owner may be able to read the file. --hash-password makes its lines.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = TEAM)]
    password_file: Option<PathBuf>,
    /// Print the line of a password file for this name
    ///
    /// The password is the first line of standard input.
    #[arg(long, value_name = "NAME", help_heading = TEAM)]
    hash_password: Option<String>,
    /// Let in only certificates with this name (repeatable)
    #[arg(long, value_name = "NAME", conflicts_with = "password_file", help_heading = TEAM)]
    tls_name: Vec<String>,
    /// Refuse certificates that this PEM revocation list names
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "password_file", help_heading = TEAM)]
    tls_crl: Option<PathBuf>,
    /// Size of all caches together
    #[arg(long, value_name = "SIZE", default_value = "128M", value_parser = size::parse, help_heading = PERFORMANCE)]
    memory: u64,
    #[arg(from_global)]
    json: bool,
    #[arg(from_global)]
    quiet: bool,
}

impl WebArgs {
    /// Returns whether there are several repositories, of which one may be clear beside a key.
    pub(in crate::cli) fn is_of_several(&self) -> bool {
        self.repositories.len() > 1
    }
}

pub(in crate::cli) fn run(args: WebArgs, storages: &Storages) -> Result<u8> {
    if let Some(name) = &args.hash_password {
        return hash_password(name);
    }
    platform::memory::return_large_buffers();
    let own = args.repositories.iter();
    let own = own.map(|location| shown(location, words_of_process(), storages));
    let of_profiles = args.profiles.iter().map(|name| shown_by_profile(name));
    let repositories: Vec<_> = own.chain(of_profiles).collect::<Result<_>>()?;
    if args.is_of_several() {
        storages.check_key_use()?;
    }
    let door = Door::open(&args, storages)?;
    let page = Arc::new(EntryFile::default());
    end_on_signals(page.clone());
    let address = door.guard.address();
    say_ready(&args, &address)?;
    if matches!(door.guard.entry(), Entry::Token) && !args.no_browser && has_browser() {
        open_browser(&address, &page);
    }
    let is_quiet = args.quiet || args.json;
    let site = Site::new(SiteOptions {
        repositories,
        memory: memory(args.memory, FRAME_BYTES) as usize,
        may_restore: args.allow_restore,
        on_entry: Box::new(move |address| {
            page.remove();
            if !is_quiet {
                aside(format_args!(
                    "a browser entered; another one can: {address}"
                ));
            }
        }),
    });
    let server = Server {
        guard: door.guard,
        tls: door.tls,
        answers: Box::new(site),
    };
    server.serve(&door.listener)
}

fn hash_password(name: &str) -> Result<u8> {
    let mut password = String::new();
    let failed = |error| Error::io("could not read the password", error);
    io::stdin()
        .lock()
        .read_line(&mut password)
        .map_err(failed)?;
    let line = password_line(name, password.trim_end_matches(['\r', '\n']))?;
    printed(|out| Ok(writeln!(out, "{line}").map_or(1, |()| 0)))
}

/// Opens a repository to show, which commands reach with these options.
fn shown(location: &OsStr, options: Vec<OsString>, storages: &Storages) -> Result<ShownRepository> {
    let objects = storages.repository_at(location)?;
    read_repository(&*objects)?;
    Ok(ShownRepository {
        location: location.to_owned(),
        options,
        index: IndexPlace::new(storages.index_dir()),
        objects,
    })
}

/// Opens the repository of a profile, with the options of the profile.
fn shown_by_profile(name: &OsStr) -> Result<ShownRepository> {
    let words = profile::named(name)?.words_of(&["stats"]);
    let words = words.into_words_with(&[]);
    let words = iter::once("fullbore".into()).chain(words);
    let unfit = |error: clap::Error| {
        let message = format!("cannot show the repository of profile {name:?}");
        Error::new(ErrorKind::Usage, message).because(error.kind().to_string())
    };
    let program = command_line::program().clone();
    let matches = program.try_get_matches_from(words).map_err(unfit)?;
    let of_command = matches.subcommand().map(|(_, of_command)| of_command);
    let of_command = of_command.unwrap_or(&matches);
    let storage = StorageArgs::from_arg_matches(of_command).map_err(unfit)?;
    let location: Option<&OsString> = of_command.get_one("repository");
    let location = location.ok_or_else(|| {
        let message = format!("cannot show profile {name:?}: it names no repository");
        Error::new(ErrorKind::Usage, message)
    })?;
    let storages = storage.storages(StorageNeeds {
        cache: CacheUse::Documents,
        clear: ClearUse::default(),
        accepts_other_keys: false,
    })?;
    shown(location, storage.words(), &storages)
}

/// The place where browsers come in, and who is let in.
struct Door {
    listener: TcpListener,
    guard: Guard,
    tls: Option<TlsSettings>,
}

impl Door {
    fn open(args: &WebArgs, storages: &Storages) -> Result<Self> {
        let wanted = args.listen.unwrap_or((Ipv4Addr::LOCALHOST, 0).into());
        let (entry, tls) = way_in(args, storages, wanted)?;
        if wanted.ip().is_unspecified() && args.name.is_empty() {
            let message = format!("cannot listen at {wanted} without a name");
            return Err(Error::new(ErrorKind::Usage, message)
                .hint("say what browsers call this server: --name HOST"));
        }
        let failed = |error| Error::io(format!("could not listen at {wanted}"), error);
        let listener = TcpListener::bind(wanted).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self {
            guard: Guard::new(entry, address, &args.name, tls.is_some())?,
            listener,
            tls,
        })
    }
}

/// Returns who is let in at an address, and the settings of TLS.
fn way_in(
    args: &WebArgs,
    storages: &Storages,
    wanted: SocketAddr,
) -> Result<(Entry, Option<TlsSettings>)> {
    let files = storages.tls_files().clone();
    if let Some(file) = &args.password_file {
        let file = PasswordFile(file.clone());
        file.check()?;
        let tls = TlsServer::for_everyone(files)?;
        return Ok((Entry::Passwords(file), Some(Box::new(move || tls.config()))));
    }
    let has_limits = !args.tls_name.is_empty() || args.tls_crl.is_some();
    if wanted.ip().is_loopback() && !has_limits {
        return Ok((Entry::Token, None));
    }
    let clients = TlsClients {
        revoked: args.tls_crl.clone(),
        names: args.tls_name.iter().cloned().collect(),
    };
    let tls = TlsServer::new(files, clients).map_err(|error| match error.kind {
        ErrorKind::Usage if error.hint.is_none() => error.hint(
            "browsers of other hosts need --tls-cert, --tls-key, and --password-file or --tls-ca",
        ),
        _ => error,
    })?;
    Ok((Entry::Certificate, Some(Box::new(move || tls.config()))))
}

fn say_ready(args: &WebArgs, address: &str) -> Result<()> {
    let line = match args.json {
        true => json!({"type": "listening", "address": address}).to_string(),
        false => address.to_owned(),
    };
    printed(|out| Ok(writeln!(out, "{line}").map_or(1, |()| 0))).map(drop)
}

fn has_browser() -> bool {
    ["DISPLAY", "WAYLAND_DISPLAY"]
        .iter()
        .any(|name| env::var_os(name).is_some_and(|value| !value.is_empty()))
}

/// A private page that leads a browser to the address.
///
/// Other users of this host see the words of programs, so no word may have the token.
#[derive(Debug, Default)]
struct EntryFile(Mutex<Option<PathBuf>>);

impl EntryFile {
    fn write(&self, address: &str) -> io::Result<PathBuf> {
        let dir = env::var_os("XDG_RUNTIME_DIR").map_or_else(env::temp_dir, PathBuf::from);
        let path = dir.join(format!("fullbore-web-{}.html", id()));
        let mut options = OpenOptions::new();
        // A file that is there may be another user's.
        let mut file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        if let Ok(mut kept) = self.0.lock() {
            *kept = Some(path.clone());
        }
        let page = format!(
            "<!doctype html><meta charset=\"utf-8\"><title>fullbore</title>\
             <meta http-equiv=\"refresh\" content=\"0;url={address}\"><a href=\"{address}\">fullbore</a>\n"
        );
        file.write_all(page.as_bytes())?;
        Ok(path)
    }

    fn remove(&self) {
        let path = self.0.lock().ok().and_then(|mut kept| kept.take());
        if let Some(path) = path {
            let _ = fs::remove_file(path); // the user may have removed it
        }
    }
}

/// Opens the browser of the desktop. Without one, the user has the address.
fn open_browser(address: &str, page: &EntryFile) {
    let Ok(path) = page.write(address) else {
        return;
    };
    let mut command = Command::new("xdg-open");
    without_secrets(&mut command);
    command
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if let Ok(mut child) = command.spawn() {
        let _ = start(move || child.wait());
    }
}

/// Ends the process when a signal comes, unless whoever started it ignores the signal.
fn end_on_signals(page: Arc<EntryFile>) {
    let wanted = [SIGHUP, SIGINT, SIGTERM]
        .into_iter()
        .filter(|signal| !platform::is_ignored(*signal));
    let Ok(mut signals) = Signals::new(wanted) else {
        return;
    };
    let _ = start(move || {
        if signals.forever().next().is_some() {
            page.remove();
            exit(0);
        }
    });
}
