//! Commands and options of other backup programs, and their equivalents here.
//!
//! Users of those programs type the words they know. clap would suggest the command that is spelled most alike, which is often
//! wrong: `restore` for `create`.

use super::{
    args::{self, Cli},
    color,
    command_line::{self, TypedLine},
    examples::examples,
    help,
    output::aside,
    profile, rsync_words, verbs,
};
use clap::{
    Command, FromArgMatches,
    error::{ContextKind, ContextValue, ErrorKind as ClapErrorKind},
};
use fullbore_format::{
    error::{Error, ErrorKind, Result},
    layout::is_backup_id,
};
use std::{
    env,
    ffi::OsString,
    io::{self, Write},
    process,
};

/// Commands of restic, borg, rsync, tar, pgBackRest and WAL-G, and the hint for each.
const HABITS: [(&[&str], &str); 19] = [
    (
        &["stanza-create", "repo-create", "rcreate"],
        "use `fullbore init REPO`, or let the first `fullbore backup` make it",
    ),
    (
        &["create", "backup-push"],
        "use `fullbore backup PATH --to REPO`",
    ),
    (
        &["archives", "backup-list"],
        "use `fullbore list REPO`, and `fullbore show REPO@BACKUP` for one",
    ),
    (
        &["fsck"],
        "use `fullbore verify REPO`, with --data for every byte",
    ),
    (
        &["recover", "backup-fetch"],
        "use `fullbore restore REPO@BACKUP --to DIR [PATH]`",
    ),
    (
        &["rm", "remove", "expire"],
        "use `fullbore forget REPO`, and `fullbore prune REPO` to free the space",
    ),
    (&["compact", "cleanup", "gc"], "use `fullbore prune REPO`"),
    (
        &["export-tar"],
        "use `fullbore export REPO@BACKUP --to FILE.tar.zst`",
    ),
    (&["rsync"], "use `fullbore copy SRC DST`"),
    (
        &["cron", "timer"],
        "use `fullbore schedule daily PATH --to REPO`, or `fullbore systemd NAME` for a profile",
    ),
    (
        &["mirror", "replicate", "repo-copy"],
        "use `fullbore sync REPO DEST`",
    ),
    (
        &["annotate", "rename"],
        "use `fullbore tag REPO@BACKUP KEY=VALUE`",
    ),
    (&["recreate", "rebuild-index"], "use `fullbore repair REPO`"),
    (
        &["repo-ls", "repo-get"],
        "use `fullbore list REPO@latest PATH`, and `fullbore cat REPO@latest PATH` for one file",
    ),
    (
        &["stanza-delete"],
        "use `fullbore forget REPO ID…` with the ids that `fullbore list REPO` prints, and `fullbore prune REPO`",
    ),
    (
        &["stanza-upgrade"],
        "nothing is needed: an upgraded server has another system identifier, and the next `fullbore backup` begins anew",
    ),
    (
        &["start", "stop"],
        "nothing here runs by itself: `fullbore schedule off` ends a timer, and `systemctl` starts and stops those of \
         `fullbore systemd`",
    ),
    (
        &["archive-push", "archive-get", "wal-push", "wal-fetch"],
        "use `fullbore wal push %p --to REPO` as archive_command; `fullbore restore` writes restore_command by itself",
    ),
    (
        &["unlock", "break-lock"],
        "no lock outlives its process: the next `fullbore backup` clears up",
    ),
];

/// Options of those programs that no command here has, or that the given command does not have.
const OPTIONS: [(&[&str], &str); 41] = [
    (
        &["--db-include", "--db-exclude"],
        "`fullbore restore REPO --to DIR --database NAME` restores one database and what the server needs to run; --database may be repeated",
    ),
    (
        &["--link-dest", "--copy-dest", "--compare-dest"],
        "a backup stores only what changed since the last one of its source: `fullbore backup SRC --to REPO`; a copy is one state",
    ),
    (
        &["--all"],
        "REPO without @BACKUP means all backups where a command can take several, as verify and list can",
    ),
    (
        &["--host", "--path"],
        "name backups by id, as `fullbore list REPO --host NAME` prints them",
    ),
    (
        &["-i", "--ignore-case"],
        "patterns know ranges of letters: '*[lL]etter*'",
    ),
    (
        &["--name"],
        "write the pattern behind the repository: `fullbore find REPO '*.conf'`",
    ),
    (
        &["--limit", "--newest"],
        "`fullbore list REPO@latest` is about the latest backup, and `fullbore fleet REPO` prints the newest one of each source",
    ),
    (
        &["--mode"],
        "`fullbore stats REPO` prints the content of all backups and what they take; `fullbore show REPO@BACKUP` is about one",
    ),
    (
        &["--force"],
        "say what may be replaced: --overwrite replaces files, --delta also parts of them, --mirror also deletes what the backup lacks",
    ),
    (
        &["--long"],
        "`fullbore list REPO -l` prints all facts; here -v prints more",
    ),
    (
        &["-n", "--dry-run"],
        "backup, restore, copy, forget and prune take it; `fullbore config check NAME` prints the commands of a profile",
    ),
    (
        &["-a", "--archive", "-H", "-A", "-X", "-z"],
        "`fullbore copy` and `fullbore backup` always keep owners, times, hard links, holes and attributes; --compress zstd stands for -z",
    ),
    (
        &["--repo", "--repo1-path", "--repo-path"],
        "write REPO, as in `fullbore list REPO`, or -r REPO; FULLBORE_REPOSITORY stands for it",
    ),
    (
        &["--stanza"],
        "a repository holds backups of any number of clusters; --path and --host choose one, as `fullbore list REPO` prints it",
    ),
    (
        &["--target"],
        "--to DIR is the directory; a cluster recovers to --target-time, --target-lsn, --target-name or --target-xid",
    ),
    (
        &["--pgdata", "--pg1-path"],
        "use --to DIR, as in `fullbore restore REPO --to DIR`",
    ),
    (
        &["--set"],
        "write REPO@BACKUP, as in `fullbore restore REPO@2026-11-21 --to DIR`",
    ),
    (
        &["--process-max", "--jobs", "--concurrency"],
        "use -j N, which is --workers N",
    ),
    (
        &["--type", "--delta-type", "--incr", "--diff"],
        "a backup stores what changed since the last one of its source; --full stores everything. A restore recovers to \
         --target-time and the like",
    ),
    (
        &["--read-data", "--verify-data"],
        "use --data, as in `fullbore verify REPO --data`",
    ),
    (
        &["--read-data-subset"],
        "use --sample, as in `fullbore verify REPO --sample 5%`, or --for 30m",
    ),
    (
        &["--exclude-file", "--iexclude-file"],
        "use --exclude-from FILE; its lines are as in .gitignore",
    ),
    (
        &["--iexclude", "--iinclude"],
        "patterns know ranges of letters: --exclude '*.[tT][mM][pP]'",
    ),
    (
        &["--compression", "--compress-type", "--compress-level"],
        "use --compress zstd:3; lz4 and none are there too",
    ),
    (
        &["--strip-components"],
        "a restored PATH keeps its directories: restore it into a new directory, and move it",
    ),
    (
        &["--password-file", "--passcommand", "--password-command"],
        "use --passphrase-file FILE or --key FILE",
    ),
    (
        &["--include"],
        "`fullbore restore` takes it; a backup has --exclude '!NAME', as in .gitignore",
    ),
    (
        &["-0", "-1", "-2", "-3", "-4", "-5", "-6", "-7", "-8", "-9"],
        "use --level N; without it, a backup stores what changed since the last one of its source, and each restores alone",
    ),
    (
        &["-f"],
        "the place is a word or --to: `fullbore backup DIR --to tape:/dev/nst0`, `fullbore restore tape:/dev/nst0 --to DIR`",
    ),
    (
        &["-u", "-D"],
        "a level is always noted; --dumpdates FILE also writes it as dump does",
    ),
    (
        &["-W", "-w"],
        "use `fullbore list --due REPO`, with --long for all sources",
    ),
    (
        &["-B", "-M"],
        "use `fullbore backup DIR --to volumes:PREFIX --volume-size SIZE`",
    ),
    (&["-L"], "use --tag label=NAME"),
    (
        &[
            "--keep-full",
            "--retention-full",
            "--repo1-retention-full",
            "--retention-diff",
            "--repo1-retention-diff",
        ],
        "every backup restores alone: `fullbore forget REPO --keep-last N` keeps the newest; --keep-wal TIME is about recovery \
         to any time",
    ),
    (
        &["--retention-archive", "--repo1-retention-archive"],
        "WAL goes with the backups that need it; `fullbore forget REPO --keep-last N --keep-wal TIME`",
    ),
    (
        &["--repo1-host", "--pg1-host"],
        "write ssh://HOST/PATH, as the source or as the repository",
    ),
    (
        &["-C"],
        "use `fullbore verify REPO --against DIR`, which compares a backup with files",
    ),
    (&["--prune"], "run `fullbore prune REPO` behind it"),
    (
        &[
            "--keep-last",
            "--keep-hourly",
            "--keep-daily",
            "--keep-weekly",
            "--keep-monthly",
            "--keep-yearly",
            "--keep-within",
        ],
        "`fullbore forget REPO` takes it, with --prune to free the space at once",
    ),
    (
        &["--stats", "--progress", "--list"],
        "the last lines have the numbers, a terminal shows the progress, and -v lists files",
    ),
    (
        &["--last", "--latest"],
        "REPO@latest is the latest backup, REPO@latest~1 the one before",
    ),
];

/// Parses the arguments of this process. A command of another program is answered with the equivalent here; for all other
/// errors clap prints its message and ends the process.
///
/// # Errors
/// [`ErrorKind::Usage`].
pub(super) fn parse() -> Result<Cli> {
    let mut given: Vec<OsString> = env::args_os().collect();
    if given.len() == 2 && given[1] == "version" {
        given[1] = "--version".into();
    }
    if is_for_overview(&given) {
        print_overview(given.len() == 1);
    }
    let program = command_line::keep_program(args::program_for(&given), args::program);
    let is_fetch = verbs::wal::is_fetch(&given);
    let line = TypedLine::read(program, given);
    let alias = line.alias;
    let words = profile::effective_words(program, line)?;
    command_line::keep(&words);
    // The whole program prints help and explains what is wrong.
    let cli = parsed(program.clone(), &words)
        .or_else(|_| parsed(args::command(), &words))
        .map_err(|error| {
            let answered = with_typed_words(&error, &words).or_else(|| answer(&error));
            answered.unwrap_or_else(|| exit(without_wild_guess(error), is_fetch))
        })?;
    color::set(cli.global.color);
    if let Some((alias, verb)) = alias.filter(|_| !cli.global.quiet) {
        aside(format_args!("note: `{alias}` is `{verb}` here"));
    }
    Ok(cli)
}

fn parsed(program: Command, words: &[OsString]) -> clap::error::Result<Cli> {
    Cli::from_arg_matches(&program.try_get_matches_from(words)?)
}

/// Prints help or an error of clap, and ends the process. A server must not take an error for the end of an archive.
fn exit(error: clap::Error, is_fetch: bool) -> ! {
    if !is_fetch || !error.use_stderr() {
        error.exit();
    }
    let _ = error.print(); // the exit code says it, too
    process::exit(verbs::wal::FETCH_FAILED.into())
}

/// Returns whether the words are `fullbore` or `fullbore -h`.
fn is_for_overview(words: &[OsString]) -> bool {
    words.len() <= 1 || (words.len() == 2 && words[1] == "-h")
}

/// Prints the usual commands, and ends the process. Without `-h` this is an error.
fn print_overview(is_error: bool) -> ! {
    let overview = help::overview(&args::command());
    let printed = match is_error {
        true => io::stderr().write_all(overview.as_bytes()),
        false => io::stdout().write_all(overview.as_bytes()),
    };
    process::exit(if is_error || printed.is_err() { 2 } else { 0 })
}

/// Removes suggestions that have little in common with the word. What clap says of the usage then is about another word.
fn without_wild_guess(mut error: clap::Error) -> clap::Error {
    let kinds = [
        (
            ContextKind::InvalidSubcommand,
            ContextKind::SuggestedSubcommand,
        ),
        (ContextKind::InvalidArg, ContextKind::SuggestedArg),
        (ContextKind::InvalidValue, ContextKind::SuggestedValue),
    ];
    if error.kind() == ClapErrorKind::UnknownArgument {
        error.remove(ContextKind::Suggested);
    }
    for (given, suggested) in kinds {
        let Some(ContextValue::String(word)) = error.get(given) else {
            continue;
        };
        let word = word.clone();
        let is_wild = match error.get(suggested) {
            Some(ContextValue::String(guess)) => !is_like(guess, &word),
            Some(ContextValue::Strings(guesses)) => {
                let alike: Vec<String> = guesses
                    .iter()
                    .filter(|guess| is_like(guess, &word))
                    .cloned()
                    .collect();
                let is_wild = alike.is_empty();
                error.insert(suggested, ContextValue::Strings(alike));
                is_wild
            }
            _ => false,
        };
        if is_wild {
            error.remove(suggested);
        }
    }
    error
}

fn is_like(guess: &str, word: &str) -> bool {
    distance(word, guess) <= word.len().div_ceil(4)
}

/// Returns how many letters are added, removed, replaced or swapped between two words.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<usize>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

fn context_text(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    match error.get(kind) {
        Some(ContextValue::String(word)) => Some(word),
        _ => None,
    }
}

fn habit_answer(habits: &[(&[&str], &'static str)], word: &str) -> Option<&'static str> {
    let found = habits.iter().find(|(words, _)| words.contains(&word));
    found.map(|(_, instead)| *instead)
}

fn answer(error: &clap::Error) -> Option<Error> {
    if let Some(word) = context_text(error, ContextKind::InvalidSubcommand) {
        return Some(no_command(error, word));
    }
    if error.kind() == ClapErrorKind::MissingRequiredArgument {
        return missing(error);
    }
    if error.kind() == ClapErrorKind::InvalidValue {
        return no_value(error);
    }
    // Other errors are about arguments that exist.
    let word = context_text(error, ContextKind::InvalidArg)
        .filter(|_| error.kind() == ClapErrorKind::UnknownArgument)?;
    if !word.starts_with('-') {
        return one_word_too_many(error, word);
    }
    let message = format!("there is no option {word} here");
    let of_rsync = rsync_words::answer(word).filter(|_| command_line::own_words().is_of("copy"));
    let instead = of_rsync
        .or_else(|| habit_answer(&OPTIONS, word))
        .map(str::to_owned);
    let hint = instead.or_else(|| likely_option(error, word))?;
    Some(Error::new(ErrorKind::Usage, message).hint(hint))
}

/// The error of a command that nobody has, with one that is spelled alike, or where all of them are.
fn no_command(error: &clap::Error, word: &str) -> Error {
    let within = verb_of(error);
    let message = format!("there is no command {word:?} here");
    let of_others = habit_answer(&HABITS, word).filter(|_| within.is_none());
    let within = within.map_or_else(String::new, |verb| format!(" {verb}"));
    let alike = suggested(error, ContextKind::SuggestedSubcommand);
    let alike = alike.into_iter().find(|guess| is_like(guess, word));
    let hint = match (of_others, alike) {
        (Some(instead), _) => instead.to_owned(),
        (None, Some(guess)) => format!("did you mean `fullbore{within} {guess}`?"),
        (None, None) => format!("`fullbore{within} -h` lists the commands"),
    };
    Error::new(ErrorKind::Usage, message).hint(hint)
}

/// The error of a value that is not among those of its option, with all of them. Other errors of values say themselves what is wrong.
fn no_value(error: &clap::Error) -> Option<Error> {
    let value = context_text(error, ContextKind::InvalidValue)?;
    let arg = context_text(error, ContextKind::InvalidArg)?;
    let Some(ContextValue::Strings(all)) = error.get(ContextKind::ValidValue) else {
        return None;
    };
    let message = format!(
        "cannot use {value:?} for {arg}: it is one of {}",
        all.join(", ")
    );
    let error = Error::new(ErrorKind::Usage, message);
    let letters = value.chars().count().div_ceil(2);
    let alike = all.iter().min_by_key(|known| distance(value, known));
    Some(
        match alike.filter(|known| distance(value, known) <= letters) {
            Some(alike) => error.hint(format!("did you mean {alike}?")),
            None => error,
        },
    )
    .filter(|_| !value.is_empty() && !all.is_empty())
}

/// Returns what clap suggests.
fn suggested(error: &clap::Error, kind: ContextKind) -> Vec<String> {
    match error.get(kind) {
        Some(ContextValue::String(guess)) => vec![guess.clone()],
        Some(ContextValue::Strings(guesses)) => guesses.clone(),
        _ => Vec::new(),
    }
}

/// The hint for an option that nobody has: one that is spelled alike, and where all of them are.
fn likely_option(error: &clap::Error, word: &str) -> Option<String> {
    let verb = verb_of(error)?;
    let all = format!("`fullbore {verb} --help` has all options");
    match error.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(guess)) if is_like(guess, word) => {
            Some(format!("did you mean {guess}? {all}"))
        }
        _ => Some(all),
    }
}

/// The error of a word that is neither an option nor expected.
fn one_word_too_many(error: &clap::Error, word: &str) -> Option<Error> {
    let verb = verb_of(error)?;
    let words = env::args_os().collect::<Vec<_>>();
    let has_repository = words.iter().any(|word| {
        let word = word.to_string_lossy();
        word == "-r" || word.starts_with("--repository")
    });
    let chosen = words.iter().find(|word| looks_like_backup(word));
    let hint = match chosen.filter(|_| has_repository) {
        Some(chosen) => format!(
            "behind -r REPO, a backup is chosen with @: write @{}",
            chosen.to_string_lossy()
        ),
        None => format!("`fullbore {verb} -h` says which words it takes"),
    };
    let message = format!("`fullbore {verb}` does not take the word {word:?} here");
    Some(Error::new(ErrorKind::Usage, message).hint(hint))
}

fn looks_like_backup(word: &OsString) -> bool {
    let word = word.to_string_lossy();
    word == "latest" || word.starts_with("latest~") || is_backup_id(&word)
}

/// The command that an error is about, such as `key list`, from what clap says of its usage.
fn verb_of(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) else {
        return None;
    };
    let usage = usage.to_string();
    let words = usage.split_once("fullbore ")?.1.split_whitespace();
    let names = words.take_while(|word| word.starts_with(|c: char| c.is_ascii_lowercase()));
    let names: Vec<_> = names.collect();
    (!names.is_empty()).then(|| names.join(" "))
}

/// The error of a command line that lacks arguments, with an example of the command.
fn missing(error: &clap::Error) -> Option<Error> {
    let Some(ContextValue::Strings(lacking)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let Some(ContextValue::StyledStr(usage)) = error.get(ContextKind::Usage) else {
        return None;
    };
    let usage = usage.to_string();
    let words = usage.split_once("fullbore ")?.1;
    let verb = words.split(' ').next()?;
    let options: Vec<&str> = { lacking.iter() }
        .filter_map(|word| word.split(' ').next())
        .filter(|word| word.starts_with("--"))
        .collect();
    let whole = verb_of(error).unwrap_or_else(|| verb.to_owned());
    let of_verb = |line: &str| line.starts_with(&format!("fullbore {whole} "));
    let all = examples(verb);
    let found = { all.iter() }.find(|(_, line)| of_verb(line) && has_options(line, &options));
    // An example with the lacking options says more than the first one.
    let found = found.or_else(|| all.iter().find(|(_, line)| of_verb(line)));
    let message = format!("`fullbore {whole}` needs {}", lacking.join(" and "));
    let lacks_target = options.contains(&"--to") && env::args_os().any(|word| word == "-t");
    let short = if lacks_target {
        "-t is --tag here; "
    } else {
        ""
    };
    let example = found.map_or_else(String::new, |(_, line)| format!("for example `{line}`; "));
    let stands_in = match lacking.iter().any(|word| word.starts_with("<REPO")) {
        true => "; -r REPO or FULLBORE_REPOSITORY names it, too",
        false => "",
    };
    let hint = format!("{short}{example}`fullbore {whole} -h` explains{stands_in}");
    Some(Error::new(ErrorKind::Usage, message).hint(hint))
}

/// The error of a line of words that lacks only `--to`, with the last word behind it.
fn with_typed_words(error: &clap::Error, words: &[OsString]) -> Option<Error> {
    let is_missing = error.kind() == ClapErrorKind::MissingRequiredArgument;
    let Some(ContextValue::Strings(lacking)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let words: Option<Vec<&str>> = words.iter().skip(1).map(|word| word.to_str()).collect();
    let words = words.filter(|_| is_missing)?;
    if let Some(error) = letters_of_dump(&words) {
        return Some(error);
    }
    let is_plain = |word: &&str| !word.starts_with('-') && !word.contains([' ', '\'', '"']);
    let [verb @ ("backup" | "restore"), _, .., last] = words[..] else {
        return None;
    };
    let lacks_target = matches!(&lacking[..], [one] if one.starts_with("--to "));
    if !lacks_target || !words.iter().all(is_plain) {
        return None;
    }
    let sources = words[1..words.len() - 1].join(" ");
    let message = format!("`fullbore {verb}` needs {}", lacking.join(" and "));
    let mut hint = format!("for example `fullbore {verb} {sources} --to {last}`");
    if verb == "restore" {
        // The last word may as well be a path of the backup.
        hint +=
            &format!(", or `fullbore restore {sources} {last} --to DIR` for {last} of the backup");
    }
    Some(Error::new(ErrorKind::Usage, message).hint(hint))
}

/// The error of a line with the letters of dump and restore(8) in one word, as `0uf` or `-rf`, where the place follows.
fn letters_of_dump(words: &[&str]) -> Option<Error> {
    let [verb @ ("backup" | "restore"), letters, place, rest @ ..] = words else {
        return None;
    };
    let is_of_dump = match *verb {
        "backup" => letters
            .trim_start_matches('-')
            .starts_with(|letter: char| letter.is_ascii_digit()),
        _ => letters.starts_with('-') && letters.len() > 2,
    };
    let is_short = letters.len() < 6
        && letters
            .trim_start_matches('-')
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric());
    if !is_of_dump || !is_short || !letters.ends_with('f') {
        return None;
    }
    let message = format!("`fullbore {verb}` does not take {letters:?}, the letters of dump");
    let level = letters.chars().find(char::is_ascii_digit).unwrap_or('0');
    let hint = match *verb {
        "backup" => format!(
            "`fullbore backup {} --to {place} --level {level}`",
            rest.first().unwrap_or(&"DIR")
        ),
        _ if letters.contains('t') => format!("`fullbore list {place}`"),
        _ if letters.contains('i') => format!("`fullbore restore -i {place} --to DIR`"),
        _ => format!("`fullbore restore {place} --to DIR`"),
    };
    Some(Error::new(ErrorKind::Usage, message).hint(format!("use {hint}")))
}

fn has_options(line: &str, options: &[&str]) -> bool {
    options.iter().all(|option| line.contains(option))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn words_of_other_programs_are_answered_with_commands_that_there_are() {
        let is_ours = |name: &str| args::program().find_subcommand(name).is_some();
        for word in HABITS.iter().flat_map(|(words, _)| *words) {
            assert!(!is_ours(word), "{word}");
            let error = answer(&Cli::try_parse_from(["fullbore", word, "x"]).unwrap_err()).unwrap();
            let hint = error.hint.unwrap_or_default();
            let named: Vec<_> = hint
                .split("`fullbore ")
                .skip(1)
                .filter_map(|rest| rest.split([' ', '`']).next())
                .collect();
            assert!(
                !named.is_empty() && named.iter().all(|name| is_ours(name)),
                "{word}: {hint}"
            );
        }
    }

    #[test]
    fn options_of_other_programs_are_answered_with_ours() {
        for (command, option) in [
            ("list", "--repo"),
            ("restore", "--target"),
            ("prune", "--keep-daily"),
            ("backup", "--compression"),
            ("copy", "-a"),
            ("backup", "-0"),
            ("restore", "-C"),
            ("restore", "--strip-components"),
            ("restore", "--process-max"),
            ("verify", "--read-data-subset"),
        ] {
            let line = ["fullbore", command, "x", option, "y"];
            let error = answer(&Cli::try_parse_from(line).unwrap_err()).expect(option);
            assert!(
                error.hint.is_some() && error.what.contains(option),
                "{}",
                error.what
            );
        }
        let wrong =
            Cli::try_parse_from(["fullbore", "forget", "x", "--keep-daily", "y"]).unwrap_err();
        assert!(answer(&wrong).is_none(), "it is an option of that command");
    }

    #[test]
    fn a_line_that_lacks_arguments_is_answered_with_an_example() {
        for (line, lacking, example) in [
            ("backup x", "--to <DEST>", "`fullbore backup /srv/data --to"),
            ("backup --to x", "<PATH>", "`fullbore backup /srv/data --to"),
            ("verify", "<REPO[@BACKUP]>", "`fullbore verify /mnt"),
            ("key put x", "--for", "`fullbore key "),
        ] {
            let words = ["fullbore"].into_iter().chain(line.split(' '));
            let error = Cli::try_parse_from(words).unwrap_err();
            let error = answer(&error).unwrap_or_else(|| panic!("{line}: {error}"));
            let hint = error.hint.unwrap_or_default();
            assert!(error.what.contains(lacking), "{line}: {}", error.what);
            assert!(hint.contains(example), "{line}: {hint}");
        }
    }

    #[test]
    fn a_target_without_its_option_is_answered_with_the_words_that_were_typed() {
        let hint = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let error = Cli::try_parse_from(&words).unwrap_err();
            with_typed_words(&error, &words).and_then(|error| error.hint)
        };
        let typed = hint("fullbore backup nv /media/disk").unwrap();
        assert!(
            typed.contains("`fullbore backup nv --to /media/disk`"),
            "{typed}"
        );
        let typed = hint("fullbore restore repo new").unwrap();
        assert!(
            typed.contains("`fullbore restore repo --to new`"),
            "{typed}"
        );
        assert_eq!(hint("fullbore backup nv"), None);
        for (line, wanted) in [
            (
                "restore -rf tape:x",
                "use `fullbore restore tape:x --to DIR`",
            ),
            ("restore -tf tape:x", "use `fullbore list tape:x`"),
            (
                "backup 1uf tape:x home",
                "use `fullbore backup home --to tape:x --level 1`",
            ),
        ] {
            assert_eq!(hint(&format!("fullbore {line}")).as_deref(), Some(wanted));
        }
        assert_eq!(hint("fullbore backup nv -q /media/disk"), None);
    }

    #[test]
    fn only_a_word_that_is_much_alike_is_suggested() {
        let suggested = |word: &str| {
            let error = Cli::try_parse_from(["fullbore", word]).unwrap_err();
            without_wild_guess(error)
                .to_string()
                .contains("similar subcommand")
        };
        assert!(suggested("bakcup") && suggested("restor") && suggested("prnue"));
        assert!(!suggested("create") && !suggested("fork"));
    }

    #[test]
    fn an_unknown_option_is_answered_with_the_page_that_has_all_of_them() {
        let said = |line: &str| {
            let words = ["fullbore"].into_iter().chain(line.split(' '));
            let error = answer(&Cli::try_parse_from(words).unwrap_err()).unwrap();
            format!("{}; {}", error.what, error.hint.unwrap_or_default())
        };
        assert_eq!(
            said("list x --nonsense"),
            "there is no option --nonsense here; `fullbore list --help` has all options"
        );
        assert_eq!(
            said("backup x --to y --exlude z"),
            "there is no option --exlude here; did you mean --exclude? `fullbore backup --help` has all options"
        );
        for (line, word) in [
            ("verify r --all", "means all backups"),
            ("restore r --to d --db-include shop", "--database"),
            ("backup x --to r --link-dest y", "since the last one"),
            ("prune r --host h", "list REPO --host"),
            ("find r -i x", "[lL]etter"),
            ("find r --name x", "'*.conf'"),
            ("list r --limit 3", "REPO@latest"),
            ("backup x --to y -f z", "--to tape:"),
            ("list r -W", "list --due"),
            ("forget r --keep-full 2", "--keep-last N"),
            ("stats r --mode x", "fullbore show"),
            ("restore r --to d --force", "--overwrite"),
            ("find r --long x", "-v prints more"),
        ] {
            assert!(said(line).contains(word), "{line}: {}", said(line));
        }
        assert_eq!(
            said("stats r more"),
            "`fullbore stats` does not take the word \"more\" here; `fullbore stats -h` says which words it takes"
        );
    }

    #[test]
    fn what_is_no_word_of_anybody_is_left_to_the_parser() {
        let line = ["fullbore", "--help"];
        assert!(answer(&Cli::try_parse_from(line).unwrap_err()).is_none());
    }

    #[test]
    fn a_misspelled_command_or_value_is_answered_with_the_one_that_is_alike() {
        for (line, expected) in [
            (
                "bakcup",
                "there is no command \"bakcup\" here; did you mean `fullbore backup`?",
            ),
            (
                "generate",
                "there is no command \"generate\" here; `fullbore -h` lists the commands",
            ),
            (
                "key romove",
                "there is no command \"romove\" here; did you mean `fullbore key remove`?",
            ),
            (
                "key rm",
                "there is no command \"rm\" here; `fullbore key -h` lists the commands",
            ),
            (
                "schedule day",
                "cannot use \"day\" for [WHEN]: it is one of hourly, daily, weekly, monthly, off; did you mean daily?",
            ),
            (
                "forget r --group-by location",
                "cannot use \"location\" for --group-by <GROUP_BY>: it is one of source, none",
            ),
        ] {
            let words = ["fullbore"].into_iter().chain(line.split(' '));
            let error = answer(&Cli::try_parse_from(words).unwrap_err()).unwrap();
            let said = [Some(error.what), error.hint.map(String::from)]
                .into_iter()
                .flatten();
            assert_eq!(said.collect::<Vec<_>>().join("; "), expected);
        }
    }
}
