//! `fullbore copy`.

use super::{
    copy_backup::{RepositoryCopyArgs, copy_backup},
    copy_log::CopyLog,
    far::printing,
};
use crate::cli::{
    command_line,
    command_words::CommandWords,
    encryption::EncryptArgs,
    metered_run::MeteredRun,
    options::{DESTINATION, OutputArgs, SOURCE, UNREADABLE, rare},
    output::aside,
    report,
    values::any_bytes,
};
use clap::{Arg, ArgGroup, Args, ValueHint};
use fullbore_engine::copy::{
    CopyOptions, CopySource, CopySummary, CopyTarget, CopyWatch, TreeCopy,
    far::FarTarget,
    near::NearTarget,
    rules::{CopyPlace, CopyRules},
    service::CopyService,
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::REPOSITORY,
    text::{
        arguments::{name, pattern},
        size::{bytes, counted, rate, seconds},
    },
};
use fullbore_pipeline::stage::codec::Codec;
use fullbore_platform as platform;
use fullbore_storage::{
    Location, Storages,
    foreign_words::refuse_foreign,
    ssh::connect_to_peer,
    wire::{Offer, ServiceNumber, Wire},
};
use fullbore_tree::{
    file_rules::FileRules, incomplete::refuse_incomplete, write::deletion_limit::DeletionLimit,
};
use serde_json::{Value, json};
use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    io::{self, BufWriter, IsTerminal},
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex},
};

/// `fullbore copy`.
#[derive(Debug, Args)]
#[command(
    after_help = "EXIT CODES: 0 done, 1 failed, 2 wrong arguments, 3 done but something could not be read or written, 4 damage was found"
)]
#[command(mut_args(rare(&["encrypt_to", "passphrase", "no_encryption"])))]
#[command(group = ArgGroup::new("tree").multiple(true).args(["delete", "max_delete", "allow_empty", "delete_excluded", "dry_run", "checksum",
    "exclude", "exclude_from", "include", "exclude_caches", "exclude_if_present", "one_file_system", "numeric_owner"]))]
pub(in crate::cli) struct CopyTreeArgs {
    /// Directories, files, ssh://HOST/PATH, or a repository
    ///
    /// Of a single directory, the content is copied. A file, and each SRC of several, is written
    /// below DST by its name. Of a repository, the latest backup is copied, or another one with
    /// @ID.
    #[arg(value_name = "SRC", required = true, num_args = 1.., value_hint = ValueHint::AnyPath)]
    from: Vec<OsString>,
    /// The directory to write, ssh://HOST/PATH, or a repository
    ///
    /// The directory is created if it is missing, but not the one above it. If a single file is
    /// copied and DST is no directory, DST is the name of the copy; with a slash at its end, it is
    /// a directory.
    #[arg(value_name = "DST", required = true, value_hint = ValueHint::DirPath)]
    to: OsString,
    /// Delete files in DST that SRC lacks
    ///
    /// The files are printed before the first is deleted.
    #[arg(long, help_heading = DESTINATION)]
    delete: bool,
    /// Delete at most N files and directories [default: half of them]
    ///
    /// If there are more to delete, the copy ends before its first change.
    #[arg(long, value_name = "N", requires = "delete", hide_short_help = true)]
    max_delete: Option<u64>,
    /// Delete everything in DST if SRC is empty
    #[arg(long, requires = "delete", hide_short_help = true)]
    allow_empty: bool,
    /// Also delete files in DST that are excluded from the copy
    ///
    /// Other file systems are not deleted.
    #[arg(long, requires = "delete", hide_short_help = true)]
    delete_excluded: bool,
    /// Only print what would be copied and deleted
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// Compare contents, even if size and time are equal
    #[arg(long, short = 'c')]
    checksum: bool,
    /// Exclude paths that match this pattern, as in .gitignore
    ///
    /// The pattern holds for SRC and for DST. Can be repeated.
    #[arg(long, short = 'e', value_name = "GLOB", value_parser = any_bytes(pattern), help_heading = SOURCE)]
    exclude: Vec<OsString>,
    /// Exclude paths that match a pattern in this file (repeatable)
    ///
    /// The file is on this host. Its patterns come before those of --exclude.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = SOURCE, hide_short_help = true)]
    exclude_from: Vec<PathBuf>,
    /// Include paths that match this pattern in spite of --exclude
    ///
    /// An excluded directory stays excluded, with everything in it. To keep one name
    /// of a directory, exclude the other names: --exclude '/dir/*' --include /dir/name. Can be
    /// repeated.
    #[arg(long, value_name = "GLOB", value_parser = any_bytes(pattern), hide_short_help = true)]
    include: Vec<OsString>,
    /// Exclude the contents of directories with a CACHEDIR.TAG
    #[arg(long, help_heading = SOURCE, hide_short_help = true)]
    exclude_caches: bool,
    /// Exclude the contents of directories that hold this name
    #[arg(long, value_name = "NAME", value_parser = any_bytes(name), help_heading = SOURCE, hide_short_help = true)]
    exclude_if_present: Vec<OsString>,
    /// Do not enter other file systems
    #[arg(long, short = 'x', help_heading = SOURCE, hide_short_help = true)]
    one_file_system: bool,
    /// Set owners by number, even where their names are known
    #[arg(long, help_heading = DESTINATION, hide_short_help = true)]
    numeric_owner: bool,
    /// Compress content for another host: zstd[:LEVEL] or none
    #[arg(long, value_name = "CODEC", default_value = "none", help_heading = DESTINATION)]
    compress: Codec,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    repository: RepositoryCopyArgs,
}

impl CopyTreeArgs {
    /// Whether the repository of a copied backup is encrypted.
    pub(in crate::cli) fn encrypt(&self) -> &EncryptArgs {
        &self.repository.encrypt
    }

    /// Returns whether a backup is copied, and not a directory.
    pub(in crate::cli) fn is_between_repositories(&self, storages: &Storages) -> bool {
        match &self.from[..] {
            [from] => is_between_repositories(storages, from, &self.to).unwrap_or(false),
            _ => false,
        }
    }
}

pub(in crate::cli) fn run(mut args: CopyTreeArgs, storages: &Storages) -> Result<u8> {
    if let [from] = &args.from[..]
        && is_between_repositories(storages, from, &args.to)?
    {
        refuse_directory(from, &args.to)?;
        check_tree_options()?;
        let from = std::mem::take(&mut args.from).remove(0);
        return copy_backup(storages, from, &args.to, args.repository, &args.output);
    }
    refuse_shell_of_rsync(&args.exclude)?;
    refuse_tag()?;
    args.exclude.splice(..0, patterns_in(&args.exclude_from)?);
    let sources = args.from.iter().map(|from| Location::parse(from));
    let sources = sources.collect::<Result<Vec<_>>>()?;
    let destination = Location::parse(&args.to)?;
    match (CopySide::of(&sources), &destination) {
        (Some(CopySide::Near(from)), Location::Local(to)) => {
            for path in &from {
                refuse_foreign("copy from", path)?;
            }
            refuse_foreign("copy to", to)?;
            refuse_repository(&args.from, to)?;
            let copy = NamedCopy::new(&mut args, &from, Some(to))?;
            if let [path] = from[..]
                && !copy.may_be_file
            {
                say_place(&args, path, to);
            }
            let granted = copy.options.target(to, copy.may_be_file);
            let target = Arc::new(NearTarget::granted(granted));
            copy.run(&args, storages, Some(to), true, target)
        }
        (Some(CopySide::Near(from)), Location::Ssh { host, path }) => {
            let copy = NamedCopy::new(&mut args, &from, None)?;
            let wire = storages.connect_to_host(host, Offer::none())?;
            let target = far_target(&args, wire)?;
            copy.run(&args, storages, Some(path), false, target)
        }
        (Some(CopySide::Near(from)), Location::Peer(_)) => {
            let copy = NamedCopy::new(&mut args, &from, None)?;
            let target = far_target(&args, connect_to_peer()?)?;
            copy.run(&args, storages, None, false, target)
        }
        (Some(CopySide::Far(host, from)), Location::Local(to)) => {
            refuse_repository(&args.from, to)?;
            pull(&args, storages, host, &from, to)
        }
        (Some(CopySide::Far(host, from)), Location::Ssh { .. }) => {
            let source = &sources[0];
            let message =
                format!("cannot copy from {source} to {destination}: both are other hosts");
            let paths = from.iter().map(|path| path.display().to_string());
            let paths = paths.collect::<Vec<_>>().join(" ");
            let command = format!("ssh {host} fullbore copy {paths} {destination}");
            let hint = format!("run the copy on one of them: `{command}`");
            Err(Error::new(ErrorKind::Usage, message).hint(hint))
        }
        _ => {
            let named = sources.iter().map(ToString::to_string);
            let named = named.collect::<Vec<_>>().join(" and ");
            let message = format!("cannot copy {named} to {destination}");
            Err(Error::new(ErrorKind::Usage, message).because(
                "a copy is from one host to a directory, or of one backup from repository to repository",
            ))
        }
    }
}

/// The host of all sources of a copy, and their paths there.
enum CopySide<'a> {
    Near(Vec<&'a Path>),
    Far(&'a str, Vec<&'a Path>),
}

impl<'a> CopySide<'a> {
    /// Returns the host that has all of them; `None` if they are on several, or are no files.
    fn of(sources: &'a [Location]) -> Option<Self> {
        let near = sources.iter().map(|source| match source {
            Location::Local(path) => Some(&**path),
            _ => None,
        });
        if let Some(paths) = near.collect() {
            return Some(Self::Near(paths));
        }
        let Location::Ssh { host: first, .. } = sources.first()? else {
            return None;
        };
        let far = sources.iter().map(|source| match source {
            Location::Ssh { host, path } if host == first => Some(&**path),
            _ => None,
        });
        Some(Self::Far(first, far.collect::<Option<_>>()?))
    }
}

/// The sources of this host, each with its name in the target.
struct NamedCopy {
    sources: Vec<CopySource>,
    options: CopyOptions,
    may_be_file: bool,
}

impl NamedCopy {
    /// Reads the sources. A pattern that begins with one of them, as it was typed, is changed into
    /// one for what is below it. `to` is the target, if it is on this host.
    fn new(args: &mut CopyTreeArgs, from: &[&Path], to: Option<&Path>) -> Result<Self> {
        for path in from {
            refuse_incomplete(path)?;
        }
        if let [path] = from
            && is_directory(path)?
        {
            let typed = args
                .exclude
                .iter()
                .map(|line| below_typed(args, line, path, to));
            args.exclude = typed.collect();
            return Ok(Self {
                options: options_below(args, &[place(path, b"")?]),
                sources: vec![CopySource::content(path)],
                may_be_file: false,
            });
        }
        let sources = from.iter().map(|path| CopySource::named(path));
        let sources: Vec<CopySource> = sources.collect::<Result<_>>()?;
        for (number, source) in sources.iter().enumerate() {
            let mut others = sources[..number].iter();
            if let Some(other) = others.find(|other| other.at == source.at) {
                let message = format!(
                    "cannot copy {:?} and {:?} together",
                    other.path, source.path
                );
                return Err(Error::new(ErrorKind::Usage, message)
                    .because("both have the same name below DST"));
            }
        }
        let places = sources.iter().map(|source| place(&source.path, &source.at));
        let places: Vec<CopyPlace> = places.collect::<Result<_>>()?;
        Ok(Self {
            options: options_below(args, &places),
            may_be_file: sources.len() == 1,
            sources,
        })
    }

    fn run(
        self,
        args: &CopyTreeArgs,
        storages: &Storages,
        to: Option<&Path>,
        is_near: bool,
        target: Arc<dyn CopyTarget>,
    ) -> Result<u8> {
        let copy = TreeCopy {
            from: self.sources,
            to: to.map(PathBuf::from),
            may_be_file: self.may_be_file,
            is_near,
            options: self.options,
        };
        copy_tree(args, storages, &copy, target)
    }
}

/// Returns whether a single source is a directory, or a link to one.
fn is_directory(path: &Path) -> Result<bool> {
    match path.metadata() {
        Ok(found) => Ok(found.is_dir()),
        // A link that leads nowhere is copied as a link.
        Err(_) if path.is_symlink() => Ok(false),
        Err(e) => Err(Error::io(format!("could not find {path:?}"), e)),
    }
}

/// Returns the place of a source in the target, with the names by which patterns know it.
fn place(path: &Path, at: &[u8]) -> Result<CopyPlace> {
    let failed = |e| Error::io(format!("could not find {path:?}"), e);
    let named = std::path::absolute(path).map_err(failed)?;
    let real = path.canonicalize().unwrap_or_else(|_| named.clone());
    Ok(CopyPlace::new(at, [&*named, &*real]))
}

/// Returns a pattern that begins with a relative SRC, as it was typed, as one for what is below SRC.
/// If the source or the target has such a path, the pattern is for that.
fn below_typed(args: &CopyTreeArgs, line: &OsStr, from: &Path, to: Option<&Path>) -> OsString {
    let typed = from.components().filter(|part| *part != Component::CurDir);
    let typed = typed.collect::<PathBuf>();
    let (sign, pattern) = match line.as_bytes().strip_prefix(b"!") {
        Some(pattern) => ("!", pattern),
        None => ("", line.as_bytes()),
    };
    let pattern = pattern.strip_prefix(b"./").unwrap_or(pattern);
    let below = pattern.strip_prefix(typed.as_os_str().as_bytes());
    let below = below.filter(|rest| rest.len() > 1 && rest.starts_with(b"/"));
    let has_path = |root: &Path| root.join(&typed).symlink_metadata().is_ok();
    // What only another host has may be kept from deletion by this pattern.
    let may_be_there = has_path(from) || to.map_or(args.delete, has_path);
    match below {
        Some(rest) if typed.is_relative() && !may_be_there => {
            [OsStr::new(sign), OsStr::from_bytes(rest)]
                .into_iter()
                .collect()
        }
        _ => line.to_owned(),
    }
}

/// Refuses to back up a directory by a copy into a repository.
fn refuse_directory(from: &OsStr, to: &OsStr) -> Result<()> {
    let location = Location::parse(from)?;
    let Location::Local(path) = &location else {
        return Ok(());
    };
    let is_backup = is_repository(&location) || !path.exists();
    match is_backup {
        true => Ok(()),
        false => Err(backs_up(from, to)),
    }
}

/// The error of a directory that is copied into a repository.
fn backs_up(from: &OsStr, to: &OsStr) -> Error {
    let (from, to) = (Path::new(from), Path::new(to));
    let message =
        format!("cannot copy {from:?} to {to:?}: that is a repository, and {from:?} is none");
    let hint = format!(
        "to back it up, as a source of that repository: `fullbore backup {} --to {}`; for plain files, name a directory that is in no repository",
        from.display(),
        to.display()
    );
    Error::new(ErrorKind::Usage, message).hint(hint)
}

/// Refuses a target that is a repository, or in one.
fn refuse_repository(sources: &[OsString], to: &Path) -> Result<()> {
    let absolute = std::path::absolute(to).unwrap_or_else(|_| to.to_owned());
    let mut above = absolute.ancestors();
    let Some(repository) = above.find(|dir| dir.join(REPOSITORY).is_file()) else {
        return Ok(());
    };
    if repository == absolute {
        return Err(backs_up(&sources.join(OsStr::new(" ")), to.as_os_str()));
    }
    let message = format!("cannot copy to {to:?}: it is in the repository {repository:?}");
    Err(Error::new(ErrorKind::Usage, message)
        .because("only fullbore's own files belong there")
        .hint("name a directory beside it; to back up: `fullbore backup SRC --to` that repository"))
}

/// Says where the content of a directory goes that was named without a slash, as nothing but a slash tells in rsync.
fn say_place(args: &CopyTreeArgs, from: &Path, to: &Path) {
    let output = &args.output;
    let is_looked_at = io::stderr().is_terminal() || args.dry_run || output.verbose;
    let has_slash = args
        .from
        .iter()
        .any(|from| from.as_bytes().ends_with(b"/") || from.as_bytes().ends_with(b"."));
    let name = from.file_name().unwrap_or_default();
    let is_of_that_name = to.file_name() == Some(name);
    let holds_files = fs::read_dir(to).is_ok_and(|mut entries| entries.next().is_some());
    if has_slash || is_of_that_name || !holds_files || !is_looked_at || output.quiet || output.json
    {
        return;
    }
    let below = to.join(name);
    let others = match args.delete {
        true => ", and everything else there is deleted",
        false => "",
    };
    aside(format_args!(
        "note: the content of {from:?} goes into {to:?} itself{others}; for a directory in it, write {below:?}"
    ));
}

/// Refuses `-t`, which keeps times for rsync and here selects a backup by its tag.
fn refuse_tag() -> Result<()> {
    if !command_line::own_words().has("tag") {
        return Ok(());
    }
    let message = "cannot copy files with --tag (-t): it selects a backup";
    Err(Error::new(ErrorKind::Usage, message).hint("a copy always keeps times"))
}

/// Returns whether a backup is meant, and not a directory: the source is a repository or one of its
/// backups, and the target is one or may become one.
fn is_between_repositories(storages: &Storages, from: &OsStr, to: &OsStr) -> Result<bool> {
    let (from_location, to_location) = (Location::parse(from)?, Location::parse(to)?);
    if is_repository(&to_location) || matches!(from_location, Location::Cloud { .. }) {
        return Ok(true);
    }
    let names_backup = match &from_location {
        // A directory that is not there cannot be copied, so its name is that of a backup.
        Location::Local(path) if !path.exists() && from.as_bytes().contains(&b'@') => {
            return Ok(true);
        }
        Location::Ssh { path, .. } => path.as_os_str().as_bytes().contains(&b'@'),
        _ => false,
    };
    if let (Location::Ssh { .. }, Location::Ssh { .. }) = (&from_location, &to_location) {
        // Only the other host knows, and a directory is not copied from one to the other.
        if names_backup {
            return Ok(true);
        }
        let objects = storages.stored_objects(&from_location)?;
        return Ok(objects.get(REPOSITORY)?.is_some());
    }
    let may_become_one = match &to_location {
        Location::Local(path) => fs::read_dir(path).map_or(true, |mut all| all.next().is_none()),
        _ => true,
    };
    Ok((names_backup || is_repository(&from_location)) && may_become_one)
}

fn is_repository(location: &Location) -> bool {
    match location {
        Location::Local(path) => path.join(REPOSITORY).is_file(),
        Location::Cloud { .. } | Location::Server(_) => true,
        _ => false,
    }
}

/// Refuses `-e ssh`, which names the shell for rsync and here leaves out what is called so.
fn refuse_shell_of_rsync(patterns: &[OsString]) -> Result<()> {
    let is_shell = |pattern: &&OsString| {
        let first = pattern.as_bytes().split(|byte| *byte == b' ').next();
        matches!(first, Some(b"ssh" | b"rsh"))
    };
    let is_short = command_line::words().iter().any(|word| {
        let word = word.as_bytes();
        word.starts_with(b"-") && !word.starts_with(b"--") && word.contains(&b'e')
    });
    let Some(pattern) = patterns.iter().find(is_shell).filter(|_| is_short) else {
        return Ok(());
    };
    let message = format!("cannot use -e {pattern:?}: -e is --exclude here");
    Err(Error::new(ErrorKind::Usage, message).hint(
        "another host is ssh://HOST/PATH, and --ssh COMMAND its shell; to leave out what is called so: --exclude",
    ))
}

/// Reads the patterns of files, without empty lines and comments.
fn patterns_in(files: &[PathBuf]) -> Result<Vec<OsString>> {
    let mut patterns = Vec::new();
    for file in files {
        let text = fs::read(file);
        let text = text.map_err(|e| Error {
            kind: ErrorKind::Usage,
            ..Error::io(format!("could not read the patterns in {file:?}"), e)
        })?;
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
        let lines = text.split(|byte| *byte == b'\n');
        let lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let lines = lines.map(|line| OsStr::from_bytes(line).to_owned());
        patterns.extend(lines.filter_map(|line| pattern(line).ok()));
    }
    Ok(patterns)
}

/// Refuses options that are only for directories. Those of a profile, which are for its backup, do nothing here.
fn check_tree_options() -> Result<()> {
    let words = CommandWords::read(command_line::program(), env::args_os().skip(1));
    let Some(option) = words.first_of("tree").and_then(Arg::get_long) else {
        return Ok(());
    };
    let message = format!("cannot copy a backup with --{option}");
    Err(Error::new(ErrorKind::Usage, message)
        .because("a backup is copied as it is; the option is for directories"))
}

fn far_target(args: &CopyTreeArgs, wire: Wire) -> Result<Arc<dyn CopyTarget>> {
    let level = match args.compress {
        Codec::Zstd(level) => Some(level),
        Codec::None => None,
        other => {
            let message = format!("cannot compress a copy with {other}");
            return Err(Error::new(ErrorKind::Usage, message).hint("use zstd or none"));
        }
    };
    let peer = wire.peer();
    let ask = move |question: &[u8], max_bytes| {
        let _open = &wire; // it ends with the last question
        peer.ask(ServiceNumber::COPY, question, max_bytes)
    };
    Ok(Arc::new(FarTarget::new(Box::new(ask), level)))
}

/// Runs the copy on the host of the sources, with the target on this one.
fn pull(
    args: &CopyTreeArgs,
    storages: &Storages,
    host: &str,
    from: &[&Path],
    to: &Path,
) -> Result<u8> {
    // The other host gets the rights of this command line, and no others. Only that host knows
    // whether a single source is a file.
    let is_single = from.len() == 1;
    let places = from.iter().map(|path| {
        let name = path.file_name().filter(|_| !is_single).unwrap_or_default();
        CopyPlace::new(name.as_bytes(), [*path])
    });
    let places: Vec<CopyPlace> = places.collect();
    let granted = options_below(args, &places).target(to, is_single);
    let target = CopyService::new(Arc::new(NearTarget::granted(granted)));
    let offer = printing().service(ServiceNumber::COPY, target);
    let wire = storages.connect_to_host(host, offer)?;
    wire.run(&far_arguments(args, from, to))
}

/// Returns the arguments of the command on the other host: those of this one, but for the options
/// with which this host reaches others. The other host does not have the files with patterns.
fn far_arguments(args: &CopyTreeArgs, from: &[&Path], to: &Path) -> Vec<OsString> {
    let mut words = command_line::own_words()
        .without_groups(&[
            "StorageArgs",
            "RepositoryCopyArgs",
            "SelectArgs",
            "EncryptArgs",
        ])
        .without("color")
        .without("exclude_from")
        .without("exclude");
    let sources = from.iter().map(|path| path.as_os_str().to_owned());
    let target = [OsStr::new("peer:"), to.as_os_str()].into_iter().collect();
    words.replace_places(sources.chain([target]));
    let patterns = args.exclude.iter().map(|pattern| {
        let option = OsStr::new("--exclude=");
        [option, pattern].into_iter().collect()
    });
    let mut added: Vec<OsString> = patterns.collect();
    added.extend((!platform::tricks()).then(|| "--no-tricks".into()));
    words.without("no_tricks").into_words_with(&added)
}

fn copy_tree(
    args: &CopyTreeArgs,
    storages: &Storages,
    copy: &TreeCopy,
    target: Arc<dyn CopyTarget>,
) -> Result<u8> {
    let log = Arc::new(CopyLog {
        shows_all: args.output.verbose || args.dry_run,
        is_quiet: args.output.quiet,
        is_json: args.output.json,
        out: Mutex::new(BufWriter::new(io::stdout())),
    });
    let run = MeteredRun::new(storages, &args.output, report::ENDS);
    let copied = run.work(|meter| copy.run(target, log.clone(), meter));
    log.flush();
    let copied = copied?;
    let warnings = copied.skipped_lines.iter().chain(&copied.warnings);
    warnings.for_each(|line| aside(format_args!("warning: {line}")));
    let is_looked_at = (args.dry_run || args.output.verbose) && !args.output.json;
    let idle = copied.idle_names.iter().filter(|_| is_looked_at);
    idle.for_each(|line| aside(format_args!("note: {line}")));
    run.end(&last_lines(&copied, args.dry_run), || {
        result(&copied, args.dry_run)
    });
    Ok(if copied.skipped == 0 { 0 } else { UNREADABLE })
}

/// The options of a copy of sources with these places.
fn options_below(args: &CopyTreeArgs, places: &[CopyPlace]) -> CopyOptions {
    // In one list of patterns, the last one that matches decides.
    let included = args.include.iter();
    let included = included.map(|line| [OsStr::new("!"), line].into_iter().collect());
    CopyOptions {
        rules: CopyRules {
            files: FileRules {
                exclude: args.exclude.iter().cloned().chain(included).collect(),
                exclude_from: Vec::new(),
                exclude_caches: args.exclude_caches,
                exclude_if_present: args.exclude_if_present.clone(),
                one_file_system: args.one_file_system,
            },
            places: places.to_vec(),
        },
        delete: args.delete,
        checksum: args.checksum,
        dry_run: args.dry_run,
        numeric_owner: args.numeric_owner,
        delete_excluded: args.delete_excluded,
        limit: DeletionLimit {
            max: args.max_delete,
            allow_empty: args.allow_empty,
        },
        owners: None,
    }
}

/// The last lines of a copy.
fn last_lines(copied: &CopySummary, is_dry_run: bool) -> Vec<String> {
    let CopySummary {
        new,
        changed,
        deleted,
        same,
        ..
    } = copied;
    let sockets = match copied.sockets {
        0 => String::new(),
        n => format!("; {} not copied", counted(n, "socket")),
    };
    let entries = format!(
        "entries: {new} new, {changed} changed, {deleted} deleted, {same} unchanged{sockets}"
    );
    if is_dry_run {
        return vec![format!("{entries}; this was a dry run")];
    }
    let content = format!(
        "{} of content in {}, {}",
        bytes(copied.sent_bytes),
        seconds(copied.seconds),
        rate(copied.sent_bytes, copied.seconds)
    );
    let skipped = (copied.skipped > 0).then(|| {
        let count = counted(copied.skipped, "problem");
        format!("the copy is not complete: {count}")
    });
    [content, entries].into_iter().chain(skipped).collect()
}

/// The result of a copy as JSON.
fn result(copied: &CopySummary, is_dry_run: bool) -> Value {
    json!({"type": "result", "dry_run": is_dry_run, "added": copied.new, "changed": copied.changed,
        "same": copied.same, "removed": copied.deleted, "sent_bytes": copied.sent_bytes,
        "sockets": copied.sockets,
        "failure_count": copied.skipped, "failures": copied.skipped_lines, "warnings": copied.warnings,
        "seconds": copied.seconds})
}
