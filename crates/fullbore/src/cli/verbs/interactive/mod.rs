//! `fullbore restore -i`: a session that looks at a backup, marks entries and restores them.

mod commands;
mod line_reader;
mod marks;
mod place;
mod words;

use super::{
    find,
    listing::entries::entry_line,
    restore::finish,
    restore_args::{RestoreArgs, plan},
};
use crate::cli::{
    limit::RunEnds,
    metered_run::MeteredRun,
    options::OutputArgs,
    output::{aside, printed},
    report,
};
use commands::{COMMANDS, command};
use fullbore_engine::restore::{Restore, RestoreInto};
use fullbore_format::{
    entry::{EntryKind, EntryPath},
    error::{Error, ErrorKind, Result, quoted},
    page::Record,
    text,
};
use fullbore_repository::{
    archive::{Archive, Selection},
    open::{open, without_backup},
};
use fullbore_storage::Storages;
use fullbore_tree::patterns::Patterns;
use line_reader::LineReader;
use marks::MarkRules;
use place::BackupPlace;
use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
};
use words::{TypedWord, split};

/// Runs a session. Commands come from a terminal or from a pipe; from a pipe, the first error ends
/// the session.
///
/// # Errors
/// Those of opening the backup, and from a pipe those of a command.
pub(super) fn run(args: &RestoreArgs, storages: &Storages) -> Result<u8> {
    let mut restore = plan(args, storages)?;
    let archive = Arc::new(open(storages, &args.from, &restore.filter)?);
    if !archive.is_one_file() {
        // The latest backup may be another one when entries are extracted.
        let mut pinned = OsString::from(without_backup(&args.from));
        pinned.push("@");
        pinned.push(&archive.root.id);
        restore.from = pinned;
    }
    let mut session = Session {
        marks: MarkRules::default(),
        place: BackupPlace {
            archive,
            directory: EntryPath::new(),
        },
        to: args.to.clone(),
        output: args.output.clone(),
        is_verbose: args.output.verbose,
        has_prompt: true,
        has_restored: false,
        last: "",
        storages,
        restore,
        exit_code: 0,
    };
    for path in std::mem::take(&mut session.restore.paths) {
        let path = session.place.path(&path)?;
        session.marks.set(&path, true);
    }
    session.run()
}

/// The effect of a command on the session: it continues or ends.
#[derive(PartialEq, Eq)]
enum Flow {
    On,
    End,
}

struct Session<'a> {
    place: BackupPlace,
    marks: MarkRules,
    restore: Restore,
    /// The target of --to.
    to: Option<PathBuf>,
    output: OutputArgs,
    is_verbose: bool,
    has_prompt: bool,
    /// Whether anything was extracted.
    has_restored: bool,
    /// The last command.
    last: &'static str,
    storages: &'a Storages,
    /// The highest exit code of the restores.
    exit_code: u8,
}

impl Session<'_> {
    fn run(&mut self) -> Result<u8> {
        let mut lines = LineReader::new(self.place.clone())?;
        if lines.is_terminal() && !self.output.quiet {
            let root = &self.place.archive.root;
            let source = text::source_text(&root.source);
            aside(format_args!(
                "backup {} of {source}; `help` lists the commands",
                root.id
            ));
        }
        loop {
            let prompt = if self.has_prompt { "restore > " } else { "" };
            let Some(line) = lines.next(&self.place, prompt)? else {
                break;
            };
            match self.perform(&line) {
                Ok(Flow::On) => {}
                Ok(Flow::End) => break,
                Err(error) if lines.is_terminal() => aside(report::error(&error)),
                Err(error) => return Err(error),
            }
        }
        if !self.marks.is_empty() && !self.has_restored && !lines.is_terminal() {
            aside("note: nothing was restored: `extract` restores what is marked");
        }
        Ok(self.exit_code)
    }

    fn perform(&mut self, line: &[u8]) -> Result<Flow> {
        let words = split(line)?;
        let Some((name, words)) = words.split_first() else {
            return Ok(Flow::On);
        };
        let name = String::from_utf8_lossy(&name.text);
        let command = command(&name).unwrap_or_default();
        if command.is_empty() && words.is_empty() && self.is_answer_to_dump(&name) {
            aside(format_args!(
                "note: {name:?} is left out: no question was asked"
            ));
            return Ok(Flow::On);
        }
        self.last = command;
        match command {
            "ls" => self.list(words)?,
            "cd" => self.change_directory(words)?,
            "pwd" => say(&format!("/{}", text::name(&self.place.directory)))?,
            "add" => self.mark(words, true)?,
            "delete" => self.mark(words, false)?,
            "marked" => self.print_marks()?,
            "find" => self.find(words)?,
            "versions" => self.print_versions(words)?,
            "extract" => self.extract(words)?,
            "setmodes" => self.set_modes(words)?,
            "verbose" => self.toggle_verbose()?,
            "what" => self.print_backup()?,
            "prompt" => self.has_prompt = !self.has_prompt,
            "help" => help()?,
            "quit" => return Ok(Flow::End),
            _ => {
                let message = format!("cannot do {}: it is no command", quoted(name.as_bytes()));
                return Err(Error::new(ErrorKind::Usage, message).hint("`help` lists the commands"));
            }
        }
        Ok(Flow::On)
    }

    /// Scripts for restore(8) answer its questions behind `extract`: the number of the volume, and whether to set modes.
    fn is_answer_to_dump(&self, word: &str) -> bool {
        let is_number = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
        let is_answer = is_number || matches!(word, "y" | "n" | "yes" | "no");
        is_answer && matches!(self.last, "extract" | "setmodes")
    }

    fn print_backup(&self) -> Result<()> {
        let root = &self.place.archive.root;
        say(&format!(
            "backup {} of {}, from {} to {}",
            root.id,
            text::source_text(&root.source),
            root.time,
            root.captured_at()
        ))
    }

    fn toggle_verbose(&mut self) -> Result<()> {
        self.is_verbose = !self.is_verbose;
        say(if self.is_verbose {
            "verbose: on"
        } else {
            "verbose: off"
        })
    }

    fn list(&self, words: &[TypedWord]) -> Result<()> {
        let is_long = self.is_verbose || words.iter().any(|word| word.text == b"-l");
        let named: Vec<_> = words.iter().filter(|word| word.text != b"-l").collect();
        if named.is_empty() {
            return self.list_directory(&self.place.directory, is_long);
        }
        for word in named {
            for path in self.place.paths(word)? {
                if self.place.is_directory(&path)? && !word.has_wildcard {
                    self.list_directory(&path, is_long)?;
                } else {
                    let item = self.place.archive.look_up(&path)?;
                    let record = item.as_ref().map(|(_, item)| &**item);
                    say(&self.line(&path, &path, record, is_long))?;
                }
            }
        }
        Ok(())
    }

    fn list_directory(&self, directory: &[u8], is_long: bool) -> Result<()> {
        let children = self.place.archive.children(directory);
        print(|out| {
            for child in children {
                let child = child?;
                let record = child.item.as_deref();
                text::line(out, &self.line(&child.path, child.name(), record, is_long))?;
            }
            Ok(())
        })
    }

    /// A line of `ls`: the mark, and the name or all facts.
    fn line(&self, path: &[u8], name: &[u8], record: Option<&Record>, is_long: bool) -> String {
        let mark = match self.marks.is_marked(path) {
            true => '*',
            false if self.marks.has_marked_below(path) => '+',
            false => ' ',
        };
        match record {
            Some(record) if is_long => {
                let mut record = record.clone();
                record.entry.path = name.to_vec();
                format!("{mark} {}", entry_line(&record, false))
            }
            _ => {
                let kind = record.map(|record| &record.entry.kind);
                let is_directory = kind.is_none_or(|kind| *kind == EntryKind::Directory);
                let slash = if is_directory { "/" } else { "" };
                format!("{mark} {}{slash}", text::name(name))
            }
        }
    }

    fn change_directory(&mut self, words: &[TypedWord]) -> Result<()> {
        let path = match words {
            [] => EntryPath::new(),
            [word] => match &self.place.paths(word)?[..] {
                [path] => path.clone(),
                _ => return Err(wrong_words("cd takes one directory")),
            },
            _ => return Err(wrong_words("cd takes one directory")),
        };
        if !self.place.is_directory(&path)? {
            let message = format!("cannot go to {}: it is no directory", quoted(&path));
            return Err(Error::new(ErrorKind::Usage, message));
        }
        self.place.directory = path;
        Ok(())
    }

    /// Adds or deletes; without words, the current directory.
    fn mark(&mut self, words: &[TypedWord], wanted: bool) -> Result<()> {
        let mut paths = Vec::new();
        if words.is_empty() {
            paths.push(self.place.directory.clone());
        }
        for word in words {
            paths.extend(self.place.paths(word)?);
        }
        paths.iter().for_each(|path| self.marks.set(path, wanted));
        Ok(())
    }

    fn print_marks(&self) -> Result<()> {
        print(|out| {
            for (path, wanted) in self.marks.rules() {
                let sign = if wanted { '+' } else { '-' };
                text::line(out, &format!("{sign} /{}", text::name(path)))?;
            }
            Ok(())
        })
    }

    fn find(&self, words: &[TypedWord]) -> Result<()> {
        let [word] = words else {
            return Err(wrong_words("find takes one pattern"));
        };
        let patterns = Patterns::read(&[&word.pattern], &[] as &[&Path], &[])?;
        let below = Selection::new(&[&self.place.directory])?;
        let archive = &self.place.archive;
        print(|out| {
            for item in archive.records(&below, false) {
                let item = item?;
                let (path, kind) = (&item.entry.path, &item.entry.kind);
                let is_match = patterns.matches(path, *kind == EntryKind::Directory);
                if item.from == 0 && is_match && below.holds(path) {
                    text::line(out, &self.line(path, path, Some(&item), self.is_verbose))?;
                }
            }
            Ok(())
        })
    }

    fn print_versions(&self, words: &[TypedWord]) -> Result<()> {
        let [word] = words else {
            return Err(wrong_words("versions takes one path"));
        };
        if self.place.archive.is_one_file() {
            let message = "cannot print versions: this is an archive of one backup";
            return Err(Error::new(ErrorKind::Usage, message));
        }
        let path = self.place.path(&word.text)?;
        let repository = without_backup(&self.restore.from);
        print(|out| find::print_versions(self.storages, repository, &path, out))
    }

    /// The restore of the marked entries into the directory of a word, or into that of --to.
    fn marked_restore(&self, words: &[TypedWord]) -> Result<Restore> {
        if self.marks.is_empty() {
            let message = "cannot restore: nothing is marked";
            return Err(Error::new(ErrorKind::Usage, message).hint("`add PATH` marks an entry"));
        }
        let to = match words {
            [] => self.to.clone(),
            [word] => Some(PathBuf::from(OsStr::from_bytes(&word.text))),
            _ => return Err(wrong_words("one directory is the target")),
        };
        let to = to.ok_or_else(|| {
            Error::new(ErrorKind::Usage, "cannot restore: the target is missing")
                .hint("`extract DIR` names it, or --to DIR when the session begins")
        })?;
        let mut restore = self.restore.clone();
        restore.patterns.chosen = Some(self.marks.chosen());
        restore.to = to;
        Ok(restore)
    }

    fn extract(&mut self, words: &[TypedWord]) -> Result<()> {
        let restore = self.marked_restore(words)?;
        self.restore_now(restore)
    }

    fn set_modes(&mut self, words: &[TypedWord]) -> Result<()> {
        let mut restore = self.marked_restore(words)?;
        let archive = Arc::new(self.reopened()?);
        restore.patterns.chosen = Some(self.marks.chosen_directories(archive));
        restore.into = RestoreInto::Delta { delete: None };
        self.restore_now(restore)
    }

    fn reopened(&self) -> Result<Archive> {
        open(self.storages, &self.restore.from, &self.restore.filter)
    }

    fn restore_now(&mut self, restore: Restore) -> Result<()> {
        let output = OutputArgs {
            verbose: self.is_verbose,
            ..self.output.clone()
        };
        let archive = self.reopened()?;
        let ends = RunEnds::of(self.storages, Some(&restore.from), None);
        let run = MeteredRun::new(self.storages, &output, report::ENDS);
        let summary = run.work(|meter| restore.run_archive(archive, meter))?;
        finish(&restore, &summary, &output, run, &ends);
        self.has_restored = true;
        self.exit_code = self.exit_code.max(summary.exit_code());
        Ok(())
    }
}

fn wrong_words(message: &str) -> Error {
    Error::new(ErrorKind::Usage, message).hint("`help` lists the commands")
}

/// Prints to standard output; a reader that is gone ends the printing.
fn print(tell: impl FnOnce(&mut dyn std::io::Write) -> Result<()>) -> Result<()> {
    printed(|out| tell(out).map(|()| 0)).map(drop)
}

fn say(line: &str) -> Result<()> {
    print(|out| text::line(out, line))
}

fn help() -> Result<()> {
    print(|out| {
        for (name, words, about) in COMMANDS {
            text::line(out, &format!("{:<22} {about}", format!("{name} {words}")))?;
        }
        text::line(
            out,
            "Words are quoted as in a shell; *, ? and [] match names.",
        )
    })
}
