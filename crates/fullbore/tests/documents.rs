//! Runs the commands that README.md, the guide, the fine print and operations.md tell people to type.
//!
//! Blocks marked `sh` are run, each line that starts with `$ ` in a shell of its own; blocks marked `console` are not, since
//! they install things or are what CI runs anyway. `# exits with 4` at the end of a line is the code it must have, else it
//! is 0. Blocks marked `toml` whose first line is `# /etc/fullbore/NAME.toml` are the profiles of these commands. Paths that begin with one of [`PLACES`] are moved into a temporary directory, and programs that a test cannot have
//! stand in for themselves, see [`stand_ins`]. What commands print is not compared: times and sizes differ.

use std::{
    error::Error,
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use testkit::{
    servers::{self, Server},
    stores,
};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// Beginnings of paths that are moved.
const PLACES: [&str; 5] = ["/usr/share", "/srv", "/backup", "/restore", "/mnt"];

fn source(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(name)
}

/// A command, and the exit code it must have.
fn commands(text: &str) -> Vec<(String, i32)> {
    let mut run = false;
    let mut found = Vec::new();
    for line in text.lines() {
        match (line.strip_prefix("```"), line.strip_prefix("$ ")) {
            (Some(mark), _) => run = mark == "sh",
            (None, Some(command)) if run => {
                let (command, code) = command
                    .split_once("# exits with ")
                    .unwrap_or((command, "0"));
                found.push((command.trim().to_owned(), code.trim().parse().unwrap_or(-1)));
            }
            _ => {}
        }
    }
    found
}

/// The command with every path in [`PLACES`] moved below `to`. A place begins a word: `backups/backups` has none.
fn moved(command: &str, to: &Path) -> String {
    let mut out = String::new();
    for (index, char) in command.char_indices() {
        let begins =
            !command[..index].ends_with(|c: char| c.is_alphanumeric() || "./*".contains(c));
        if begins
            && PLACES
                .iter()
                .any(|place| command[index..].starts_with(place))
        {
            out.push_str(&to.to_string_lossy());
        }
        out.push(char);
    }
    out
}

fn write(path: &Path, content: impl AsRef<[u8]>) -> Result {
    fs::create_dir_all(path.parent().ok_or("no parent")?)?;
    Ok(fs::write(path, content)?)
}

/// Some trees: small files, one of several frames, links, and what the examples leave out.
fn trees(root: &Path) -> Result {
    for tree in ["usr/share", "srv/data", "srv/www"] {
        let tree = root.join(tree);
        let noise: Vec<u8> = (0..3_000_000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect();
        write(&tree.join("large.bin"), noise)?;
        for name in ["docs/a.txt", "docs/b.txt", "x.tmp", "cache/c"] {
            write(&tree.join(name), format!("{name}\n").repeat(99))?;
        }
        symlink("a.txt", tree.join("docs/link"))?;
        fs::hard_link(tree.join("docs/b.txt"), tree.join("docs/same"))?;
    }
    for place in ["backup", "mnt/disk", "mnt/other"] {
        fs::create_dir_all(root.join(place))?;
    }
    Ok(())
}

/// A running cluster with a database `shop`, and a stopped one in `/srv/main`.
fn clusters(root: &Path) -> Result<Server> {
    let server = servers::debian()
        .ok_or("PostgreSQL is not installed")?
        .start(&[], &[]);
    server.psql("CREATE DATABASE shop");
    server.stop("fast");
    assert!(
        Command::new("cp")
            .arg("-a")
            .arg(server.data())
            .arg(root.join("srv/main"))
            .status()?
            .success()
    );
    server.run();
    Ok(server)
}

/// A program that dumps, and another host.
fn stand_ins(dir: &Path) -> Result {
    for (name, script) in [
        ("pg_dump", "echo \"-- dump of $1\""),
        ("ssh", "shift; exec sh -c \"$*\""),
    ] {
        let path = dir.join(name);
        write(&path, format!("#!/bin/sh\n{script}\n"))?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

/// Writes each profile of the document to `dir`, with its paths below `root`.
fn profiles(document: &str, dir: &Path, root: &Path) -> Result {
    for block in document.split("```toml\n# /etc/fullbore/").skip(1) {
        let (name, rest) = block.split_once('\n').ok_or("a block ends")?;
        let (profile, _) = rest.split_once("```").ok_or("a block has no end")?;
        let lines = profile.lines().map(|line| moved(line, root) + "\n");
        write(&dir.join(name), lines.collect::<String>())?;
    }
    Ok(())
}

fn run_all(documents: &[&str]) -> Result {
    let temp = tempfile::tempdir()?;
    let (root, work) = (temp.path(), temp.path().join("work"));
    trees(root)?;
    let server = clusters(root)?;
    stand_ins(&root.join("bin"))?;
    fs::create_dir(&work)?;
    let program = Path::new(env!("CARGO_BIN_EXE_fullbore"))
        .parent()
        .ok_or("no parent")?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = [root.join("bin"), program.to_owned()]
        .into_iter()
        .chain(std::env::split_paths(&path));
    let path = std::env::join_paths(path)?;
    let mut all = Vec::new();
    for document in documents {
        let text = fs::read_to_string(source(document))?;
        profiles(&text, &root.join("config/fullbore"), root)?;
        all.extend(commands(&text).into_iter().map(|it| (document, it)));
    }
    assert!(
        all.iter()
            .filter(|(_, (command, _))| command.contains("fullbore "))
            .count()
            > 5,
        "{documents:?} have no commands"
    );
    for (document, (command, code)) in all {
        let mut shell = Command::new("bash");
        let shell = shell
            .args(["-o", "pipefail", "-c"])
            .arg(moved(&command, root))
            .current_dir(&work);
        shell
            .env("PGHOST", server.dir())
            .env("FULLBORE_STATE_DIR", root.join("state"))
            .env("PGPORT", server.port.to_string())
            .env("PGUSER", "postgres");
        // The bucket of the examples is there, and the environment says how to reach it.
        shell
            .env("AWS_ACCESS_KEY_ID", "tester")
            .env("AWS_SECRET_ACCESS_KEY", stores::SECRET)
            .env("AWS_ENDPOINT_URL", stores::s3_endpoint())
            .env("XDG_CACHE_HOME", root.join("cache"))
            .env("XDG_CONFIG_HOME", root.join("config"));
        let output = shell.env("PATH", &path).stdin(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(code),
            "{document}: {command}\n{said}"
        );
    }
    Ok(())
}

#[test]
fn every_command_of_the_readme_does_what_it_says() -> Result {
    run_all(&["README.md"])
}

#[test]
fn every_command_of_the_guide_does_what_it_says() -> Result {
    run_all(&["doc/guide.md"])
}

#[test]
fn every_command_of_the_fine_print_does_what_it_says() -> Result {
    let pages = fine_print()?;
    let pages = pages.iter().map(String::as_str).collect::<Vec<_>>();
    run_all(&pages)
}

/// The pages of the fine print, in the order of its list.
fn fine_print() -> Result<Vec<String>> {
    let list = fs::read_to_string(source("doc/fine-print.md"))?;
    let links = list.split("](fine-print/").skip(1);
    let pages = links.filter_map(|rest| rest.split(')').next());
    Ok(pages.map(|page| format!("doc/fine-print/{page}")).collect())
}

#[test]
fn every_page_of_the_fine_print_is_listed_and_short() -> Result {
    let mut listed = fine_print()?;
    let mut there = Vec::new();
    for page in fs::read_dir(source("doc/fine-print"))? {
        let name = format!("doc/fine-print/{}", page?.file_name().display());
        let words = fs::read_to_string(source(&name))?
            .split_whitespace()
            .count();
        assert!(words < 1500, "{name}: {words} words");
        there.push(name);
    }
    listed.sort();
    there.sort();
    assert_eq!(listed, there);
    Ok(())
}

#[test]
fn every_command_of_operations_does_what_it_says() -> Result {
    run_all(&["doc/operations.md"])
}

/// Every document for people: those of the top, of `doc` and below it, and two of other directories.
fn all_documents() -> Result<Vec<PathBuf>> {
    let mut documents = vec![
        PathBuf::from("bench/README.md"),
        PathBuf::from("contrib/systemd/README.md"),
    ];
    for dir in ["", "doc", "doc/decisions", "doc/fine-print"] {
        for entry in fs::read_dir(source(dir))? {
            let name = PathBuf::from(entry?.file_name());
            if name.extension().is_some_and(|ending| ending == "md") {
                documents.push(Path::new(dir).join(name));
            }
        }
    }
    Ok(documents)
}

/// The names by which links reach the headings of a document: small letters, digits and `-` for a space, as forges make them.
fn anchors(text: &str) -> Vec<String> {
    let mut in_code = false;
    let mut found = Vec::new();
    for line in text.lines() {
        if line.starts_with("```") {
            in_code = !in_code;
        }
        if in_code || !line.starts_with('#') {
            continue;
        }
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title
            .chars()
            .filter(|char| char.is_alphanumeric() || " -_".contains(*char));
        found.push(kept.collect::<String>().replace(' ', "-"));
    }
    found
}

#[test]
fn every_link_in_the_documents_leads_to_a_file_and_a_heading() -> Result {
    for document in all_documents()? {
        let name = document.display();
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(&document);
        let text = fs::read_to_string(&path)?;
        let links = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.contains("://")) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let file = match file {
                "" => path.clone(),
                file => path.with_file_name(file),
            };
            assert!(file.exists(), "{name}: {link}");
            if !anchor.is_empty() {
                let headings = anchors(&fs::read_to_string(&file)?);
                assert!(headings.iter().any(|it| it == anchor), "{name}: {link}");
            }
        }
    }
    Ok(())
}

#[test]
fn the_contents_of_the_site_list_every_document() -> Result {
    let contents = fs::read_to_string(source("doc/SUMMARY.md"))?;
    for entry in fs::read_dir(source("doc"))? {
        let name = entry?.file_name().display().to_string();
        if name.ends_with(".md") && name != "SUMMARY.md" {
            assert!(contents.contains(&format!("]({name})")), "{name}");
        }
    }
    Ok(())
}

/// The long options in a manual page, as `--keep-daily`.
fn long_options(page: &str) -> Vec<String> {
    let plain = page
        .replace("\\-", "-")
        .replace("\\fB", " ")
        .replace("\\fR", " ");
    let words = plain.split(|char: char| !char.is_ascii_alphanumeric() && char != '-');
    words
        .filter(|word| word.starts_with("--") && word.len() > 3)
        .map(|word| word.trim_end_matches('-').to_owned())
        .collect()
}

#[test]
fn every_option_is_in_a_document() -> Result {
    let dir = tempfile::tempdir()?;
    let man = Command::new(env!("CARGO_BIN_EXE_fullbore"))
        .args(["man", "--to"])
        .arg(dir.path())
        .status()?;
    assert!(man.success());
    let mut documents = String::new();
    for document in all_documents()? {
        documents += &fs::read_to_string(source(&document.to_string_lossy()))?;
    }
    let mut missing = Vec::new();
    let mut options = 0;
    for page in fs::read_dir(dir.path())? {
        for option in long_options(&fs::read_to_string(page?.path())?) {
            options += 1;
            if !documents.contains(&option) && !missing.contains(&option) {
                missing.push(option);
            }
        }
    }
    assert!(options > 100, "the manual has {options} options");
    assert!(missing.is_empty(), "in no document: {missing:?}");
    Ok(())
}

/// The options in the left cells of a table, as words in backticks; those behind `to` are a range.
fn answered_options(table: &str) -> Vec<String> {
    let cells = table
        .lines()
        .filter_map(|row| row.strip_prefix("| ")?.split(" | ").next());
    let words = cells.flat_map(|cell| cell.split('`').skip(1).step_by(2));
    let options = words
        .flat_map(str::split_whitespace)
        .filter(|word| word.starts_with('-'));
    options.map(ToOwned::to_owned).collect()
}

#[test]
fn every_option_of_dump_and_restore_is_answered() -> Result {
    let text = fs::read_to_string(source("doc/coming-from.md"))?;
    let (_, section) = text
        .split_once("\n## dump and restore\n")
        .ok_or("no section")?;
    let (section, _) = section.split_once("\n## ").unwrap_or((section, ""));
    let (dump, restore) = section
        .split_once("| restore | fullbore |")
        .ok_or("no table")?;
    // The letters of dump 0.4b56, from its manual and its usage.
    for (table, letters) in [
        (dump, "019aABbcdDeEfFhIjkLmMnqQsSTuvwWyz"),
        (restore, "0aAbcCdDeEfFhHikLlmMNoPQrRstTuvVxXy"),
    ] {
        let answered = answered_options(table);
        for letter in letters.chars() {
            let option = format!("-{letter}");
            assert!(answered.contains(&option), "{option}: {answered:?}");
        }
    }
    // The options that the answers name exist: `every_option_is_in_a_document` holds the other direction.
    let help = Command::new(env!("CARGO_BIN_EXE_fullbore"))
        .args(["backup", "--help"])
        .output()?;
    let help = String::from_utf8(help.stdout)?;
    for option in [
        "--level",
        "--dumpdates",
        "--base",
        "--volume-size",
        "--compress",
        "--exclude-from",
        "--errors",
        "--tag",
        "--dump-script",
        "--change-command",
        "--resume",
    ] {
        assert!(dump.contains(option) && help.contains(option), "{option}");
    }
    Ok(())
}
