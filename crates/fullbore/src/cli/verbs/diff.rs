//! `fullbore diff`.

use crate::cli::{
    options::selected,
    output::{is_terminal, printed_within, terminal_columns},
    select::SelectArgs,
    verbs::diff_backups::Diff,
};
use clap::{Args, ValueHint};
use fullbore_format::error::{Error, ErrorKind, Result};
use fullbore_repository::{
    open::{place, without_backup},
    selector::LATEST,
};
use fullbore_storage::Storages;
use std::{
    ffi::{OsStr, OsString},
    path::PathBuf,
};

/// `fullbore diff`.
#[derive(Debug, Args)]
#[command(
    after_help = "Bytes are those of new contents. Of a changed file, only the blocks that differ count.\n\
                  EXIT CODES: 0 done, whether they differ or not, 1 failed, 2 wrong arguments, 4 damage was found"
)]
pub(in crate::cli) struct DiffArgs {
    /// A repository, or REPO@A B to compare A with B
    ///
    /// REPO@B alone compares B with the backup before it.
    #[arg(value_name = "REPO[@BACKUP]", value_hint = ValueHint::DirPath)]
    repository: OsString,
    #[command(flatten)]
    select: SelectArgs,
    /// The first backup [default: the one before B of the same source]
    ///
    /// A backup is an id, the beginning of an id, latest, or a time.
    #[arg(value_name = "A")]
    a: Option<OsString>,
    /// The second backup [default: latest]
    #[arg(value_name = "B")]
    b: Option<OsString>,
    /// Compare only these paths, and everything below them
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    #[arg(from_global)]
    json: bool,
    #[arg(from_global)]
    quiet: bool,
}

pub(in crate::cli) fn run(args: DiffArgs, storages: &Storages) -> Result<u8> {
    let DiffArgs {
        repository,
        select,
        a,
        b,
        paths,
        json,
        quiet,
    } = args;
    let filter = select.filter(&repository, false)?;
    let ends = DiffEnds::new(&repository, a, b, paths)?;
    let diff = Diff {
        storages: storages.clone(),
        repository: ends.repository,
        filter,
        a: ends.a,
        b: ends.b.unwrap_or_else(|| LATEST.to_owned()),
        paths: selected(ends.paths),
        has_header: is_terminal() && !json && !quiet,
        json,
    };
    let columns = terminal_columns().filter(|_| !json);
    printed_within(columns, |out| diff.run(out).map(|_| 0))
}

/// The backups to compare, as the words mean them.
struct DiffEnds {
    repository: OsString,
    a: Option<String>,
    b: Option<String>,
    paths: Vec<PathBuf>,
}

impl DiffEnds {
    /// With a backup behind the repository, the first word is B and the others are paths.
    fn new(
        from: &OsStr,
        first: Option<OsString>,
        second: Option<OsString>,
        mut paths: Vec<PathBuf>,
    ) -> Result<Self> {
        let (_, named) = place(from)?;
        let repository = without_backup(from).to_owned();
        let Some(named) = named.map(str::to_owned) else {
            return Ok(Self {
                repository,
                a: first.map(backup_name).transpose()?,
                b: second.map(backup_name).transpose()?,
                paths,
            });
        };
        paths.splice(0..0, second.map(PathBuf::from));
        let (a, b) = match first.map(backup_name).transpose()? {
            Some(b) => (Some(named), b),
            None => (None, named),
        };
        Ok(Self {
            repository,
            a,
            b: Some(b),
            paths,
        })
    }
}

/// Returns the name of a backup: BACKUP, @BACKUP or REPO@BACKUP.
fn backup_name(word: OsString) -> Result<String> {
    let text = word.into_string().map_err(|word| {
        Error::new(ErrorKind::Usage, format!("cannot find backup {word:?}"))
            .because("it is no text")
    })?;
    let name = text.rsplit_once('@').map_or(&*text, |(_, name)| name);
    Ok(name.to_owned())
}
