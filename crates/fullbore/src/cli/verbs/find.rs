//! `fullbore find`: prints the backups of a repository that hold a path, and when the path changed.

use super::{
    find_paths::{InRange, PathSweep},
    find_pattern::{FindPattern, check_pattern},
};
use crate::cli::{
    output::{is_terminal, printed_within, terminal_columns},
    select::{SelectArgs, no_filter},
    values::any_bytes,
};
use clap::{Args, ValueHint};
use fullbore_crypt::only_adds;
use fullbore_format::{
    entry::EntryPath,
    error::{Error, ErrorKind, Result},
    layout::BACKUPS,
    root::{EntryName, SourceInfo},
    text::{self, arguments::pattern, columns::fitted_row, source_text},
};
use fullbore_repository::{
    archive::{Archive, object::Sealing},
    open::{list_backups, open, pick, place, without_backup},
    select::BackupFilter,
};
use fullbore_storage::{Location, Objects, Storages};
use fullbore_tree::patterns::escape_name;
use serde::Serialize;
use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    io::Write,
    iter::Peekable,
    os::unix::ffi::OsStrExt,
    sync::Arc,
};

/// `fullbore find`.
#[derive(Debug, Args)]
#[command(
    after_help = "EXIT CODES: 0 found, 1 not found or failed, 2 wrong arguments, 4 a backup is damaged"
)]
pub(in crate::cli) struct FindArgs {
    /// A repository, one of its backups with @BACKUP, or volumes:PREFIX
    #[arg(value_name = "REPO[@BACKUP]", value_hint = ValueHint::DirPath)]
    repository: OsString,
    #[command(flatten)]
    select: SelectArgs,
    /// Pattern as in .gitignore, such as '*.conf', 'etc/*.conf' or '/passwd'
    ///
    /// '*.conf' matches in any directory. 'etc/*.conf' and '/passwd' match from the root of the
    /// backup.
    #[arg(value_name = "PATTERN", value_parser = any_bytes(pattern))]
    pattern: OsString,
    #[arg(from_global)]
    json: bool,
    #[arg(from_global)]
    quiet: bool,
    #[arg(from_global)]
    verbose: bool,
}

/// A version as JSON.
#[derive(Serialize)]
struct FindLine<'a> {
    r#type: &'static str,
    path: EntryName,
    source: &'a SourceInfo,
    source_text: &'a str,
    kind: &'static str,
    size: u64,
    mtime: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<&'a EntryName>,
    first_id: &'a str,
    last_id: &'a str,
    /// The next backup of the source, if it lacks the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    gone_id: Option<&'a str>,
    backups: u64,
}

pub(in crate::cli) fn run(args: FindArgs, storages: &Storages) -> Result<u8> {
    let filter = args.select.filter(&args.repository, true)?;
    let columns = terminal_columns().filter(|_| !args.json && !args.verbose);
    let find = FindBackups {
        storages,
        columns,
        repository: &args.repository,
        pattern: &args.pattern,
        filter,
        has_header: is_terminal() && !args.json && !args.quiet,
        is_json: args.json,
    };
    printed_within(columns, |out| find.run(out))
}

/// Prints the versions of one path in all backups of a repository.
///
/// # Errors
/// As [`FindBackups::run`].
pub(super) fn print_versions(
    storages: &Storages,
    repository: &OsStr,
    path: &[u8],
    out: &mut dyn Write,
) -> Result<()> {
    let pattern = [b"/", &escape_name(path)[..]].concat();
    let find = FindBackups {
        storages,
        repository,
        pattern: OsStr::from_bytes(&pattern),
        filter: no_filter(repository, true),
        has_header: false,
        columns: None,
        is_json: false,
    };
    find.run(out).map(drop)
}

/// The hint for a pattern that matched nothing.
const PART_OF_A_NAME: &str = "'*letter*' finds a part of a name, '*[lL]etter*' either case, and 'docs/**' all below a directory";

/// A pattern, and the backups to search.
struct FindBackups<'a> {
    storages: &'a Storages,
    repository: &'a OsStr,
    pattern: &'a OsStr,
    filter: BackupFilter,
    /// Whether to print a line about the columns first.
    has_header: bool,
    /// Columns of the terminal, into which lines are fitted; `None` for whole lines.
    columns: Option<usize>,
    is_json: bool,
}

impl FindBackups<'_> {
    /// Prints the matches to `out`. Returns the exit code: 0; 4 if a root is damaged; 1 if a root
    /// cannot be read for another reason. The output names that root.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] for an invalid pattern; [`ErrorKind::NotFound`] without a match; errors
    /// of the repository, of damaged pages and of `out`.
    fn run(&self, out: &mut dyn Write) -> Result<u8> {
        check_pattern(self.pattern)?;
        let (location, backup) = place(self.repository)?;
        if matches!(location, Location::Volumes(_) | Location::Tape(_)) {
            return self.run_in_volumes(out);
        }
        let repository = &self
            .storages
            .repository_at(without_backup(self.repository))?;
        let only = backup
            .map(|backup| pick(repository, Some(backup), &self.filter))
            .transpose()?;
        let opened = self.open_sources(repository, only.as_deref(), out)?;
        let (code, locked) = (opened.code, opened.locked);
        let sources = opened.sources.into_iter();
        let sources = sources
            .map(|(name, archives)| self.source(Some(repository), name, archives))
            .collect::<Result<_>>()?;
        let found = self.print_matches(sources, out)?;
        if locked > 0 {
            return Err(locked_error(repository, locked));
        }
        if code == 0 && !found {
            let message = format!(
                "could not find {:?} in any backup of {:?}",
                self.pattern, self.repository
            );
            return Err(Error::new(ErrorKind::NotFound, message).hint(PART_OF_A_NAME));
        }
        Ok(code)
    }

    /// Prints the matches in the backup of a series of volumes.
    fn run_in_volumes(&self, out: &mut dyn Write) -> Result<u8> {
        let archive = open(self.storages, self.repository, &self.filter)?;
        let name = source_text(&archive.root.source);
        let source = self.source(None, name, vec![archive])?;
        if self.print_matches(vec![source], out)? {
            return Ok(0);
        }
        let message = format!("could not find {:?} in {:?}", self.pattern, self.repository);
        Err(Error::new(ErrorKind::NotFound, message).hint(PART_OF_A_NAME))
    }

    fn source<'a>(
        &self,
        repository: Option<&'a Arc<dyn Objects>>,
        name: String,
        archives: Vec<Archive>,
    ) -> Result<FindSource<'a>> {
        let first = archives.first().map(|archive| archive.root.source.clone());
        let info = first.unwrap_or_default();
        let pattern = FindPattern::new(self.pattern, &info)?;
        let ids = archives.iter().map(|archive| archive.root.id.clone());
        Ok(FindSource {
            name,
            info,
            ids: ids.collect(),
            found: PathSweep::new(repository, archives, pattern).peekable(),
        })
    }

    /// Opens the selected backups by source, and prints those that cannot be opened.
    fn open_sources(
        &self,
        repository: &Arc<dyn Objects>,
        only: Option<&str>,
        out: &mut dyn Write,
    ) -> Result<OpenedSources> {
        let mut opened = OpenedSources::default();
        let mut is_any = self.filter.is_empty();
        for (id, mut root) in list_backups(repository)? {
            if only.is_some_and(|only| only != id) {
                continue;
            }
            let is_listed = root.is_ok();
            if root
                .as_mut()
                .is_ok_and(|root| !self.filter.selects_in(repository, root))
            {
                continue;
            }
            is_any = true;
            match root.and_then(|_| Archive::open_backup(repository, &id)) {
                Ok(archive) if is_locked(&archive) => opened.locked += 1,
                Ok(archive) => opened
                    .sources
                    .entry(source_text(&archive.root.source))
                    .or_default()
                    .push(archive),
                // Forgotten since it was listed.
                Err(error) if is_listed && error.kind == ErrorKind::NotFound => {}
                Err(error) => {
                    opened.code = error.exit_code().max(opened.code);
                    self.print_error(&id, &error, out)?;
                }
            }
        }
        if is_any {
            Ok(opened)
        } else {
            Err(self.filter.none_selected(repository)?)
        }
    }

    fn print_error(&self, id: &str, error: &Error, out: &mut dyn Write) -> Result<()> {
        let error = error.line();
        if self.is_json {
            text::json(
                out,
                &serde_json::json!({"type": "error", "id": id, "error": error}),
            )
        } else {
            text::line(out, &format!("{id}  {error}"))
        }
    }

    /// Prints the matches of all sources. Returns whether there were any.
    fn print_matches(&self, mut sources: Vec<FindSource<'_>>, out: &mut dyn Write) -> Result<bool> {
        let with_some = sources
            .iter_mut()
            .filter_map(|source| source.found.peek().map(drop))
            .take(2)
            .count();
        let is_of_several = with_some > 1;
        if self.has_header && with_some > 0 {
            let source = (is_of_several && self.columns.is_none()).then_some("SOURCE");
            let heading = VersionRow {
                size: "SIZE",
                time: "CHANGED",
                first: "FROM",
                to: "",
                last: "TO",
                backups: "IN",
                path: "PATH",
                source: source.unwrap_or_default(),
            };
            text::line(out, &heading.line(self.columns))?;
        }
        for FindSource {
            name,
            info,
            ids,
            found,
        } in sources
        {
            // A source takes a line of its own where each row has to fit a terminal.
            let is_group = is_of_several && !self.is_json && self.columns.is_some();
            let mut heading = is_group.then(|| fitted_row("", &name, self.columns));
            let of_row = (is_of_several && self.columns.is_none()).then_some(&*name);
            for found in found {
                let (path, versions) = found?;
                if let Some(heading) = heading.take() {
                    text::line(out, &heading)?;
                }
                let gone = gone_since(&ids, &versions);
                for (number, held) in versions.iter().enumerate() {
                    let gone = gone.filter(|_| number + 1 == versions.len());
                    if self.is_json {
                        let mut line = line((&info, &name), &ids, &path, held);
                        line.gone_id = gone;
                        text::json(out, &line)?
                    } else {
                        text::line(out, &plain((of_row, gone), &ids, &path, held, self.columns))?
                    }
                }
            }
        }
        Ok(with_some > 0)
    }
}

/// The selected backups of a repository.
#[derive(Default)]
struct OpenedSources {
    sources: BTreeMap<String, Vec<Archive>>,
    /// The exit code for those that could not be opened.
    code: u8,
    /// How many have lists that the key does not open.
    locked: u64,
}

/// The error of backups that may have the path, and whose lists the key does not open.
fn locked_error(repository: &Arc<dyn Objects>, locked: u64) -> Error {
    let sealed = repository.as_sealed();
    let refused = sealed.and_then(|sealed| sealed.check_readable(BACKUPS).err());
    let error = refused.unwrap_or_else(|| only_adds(&repository.describe(BACKUPS)));
    let backups = text::counted(locked, "backup");
    error.detail(format!("the lists of {backups} were not searched"))
}

/// Returns whether the pages of a backup are encrypted, and the key does not open them.
fn is_locked(archive: &Archive) -> bool {
    archive.store().sealing() == Sealing::Locked && archive.root.pages.is_empty()
}

/// A source: its name and parts, the IDs of its backups, oldest first, and their matches.
struct FindSource<'a> {
    name: String,
    info: SourceInfo,
    ids: Vec<String>,
    found: Peekable<PathSweep<'a>>,
}

fn line<'a>(
    (source, source_text): (&'a SourceInfo, &'a str),
    ids: &'a [String],
    path: &EntryPath,
    (version, run): &'a InRange,
) -> FindLine<'a> {
    FindLine {
        r#type: "version",
        path: EntryName(path.clone()),
        source,
        source_text,
        kind: version.kind,
        size: version.size,
        mtime: text::rfc3339(version.mtime),
        digest: version.digest.map(|digest| digest.to_string()),
        target: version.target.as_ref(),
        first_id: &ids[*run.start()],
        last_id: &ids[*run.end()],
        gone_id: None,
        backups: run.clone().count() as u64,
    }
}

/// Returns the first backup after the last one that has a path, in the order of time.
fn gone_since<'a>(ids: &'a [String], versions: &[InRange]) -> Option<&'a str> {
    let last = versions.iter().map(|(_, run)| *run.end()).max()?;
    ids.get(last + 1).map(String::as_str)
}

/// Returns the row of a version; behind the last one of a path that is gone, the backup that lacks it first.
fn plain(
    (source, gone): (Option<&str>, Option<&str>),
    ids: &[String],
    path: &EntryPath,
    (version, run): &InRange,
    columns: Option<usize>,
) -> String {
    let is_one = run.start() == run.end();
    let size = match columns {
        Some(..ALL_FIGURES) => text::bytes(version.size),
        _ => text::count(version.size),
    };
    let row = VersionRow {
        size: &size,
        time: &text::local_minute(version.mtime),
        first: &ids[*run.start()],
        to: if is_one { "" } else { "to" },
        last: if is_one { "" } else { &ids[*run.end()] },
        backups: &run.clone().count().to_string(),
        path: &match gone {
            Some(gone) => format!("{}  (gone in {gone})", text::name(path)),
            None => text::name(path),
        },
        source: source.unwrap_or_default(),
    };
    row.line(columns)
}

/// Terminals with fewer columns get sizes rounded, and not the last backup of a version.
const ALL_FIGURES: usize = 112;
/// Terminals with fewer columns get no time of the change either.
const WITH_TIMES: usize = 76;

/// The cells of a row, or of the line above the rows.
struct VersionRow<'a> {
    size: &'a str,
    time: &'a str,
    first: &'a str,
    /// The word before the last backup. It and the backup are empty for a version of one backup.
    to: &'a str,
    last: &'a str,
    backups: &'a str,
    path: &'a str,
    /// Empty if all rows are of one source.
    source: &'a str,
}

impl VersionRow<'_> {
    fn line(&self, columns: Option<usize>) -> String {
        let Self {
            size,
            time,
            first,
            to,
            last,
            backups,
            path,
            source,
        } = self;
        let before = match columns {
            Some(..WITH_TIMES) => format!("{size:>8}  {first:<23}  {backups:>4}  "),
            Some(..ALL_FIGURES) => format!("{size:>8} {time:<16}  {first:<23}  {backups:>4}  "),
            _ => {
                format!("{size:>15} {time:<16}  {first:<23} {to:<2} {last:<23}  {backups:>4}  ")
            }
        };
        let row = fitted_row(&before, path, columns);
        match source.is_empty() {
            true => row,
            false => format!("{row}  of {source}"),
        }
    }
}
