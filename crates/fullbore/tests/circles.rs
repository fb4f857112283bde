//! Circles of files: files of a crate that import each other, directly or through others.
//!
//! Imports are followed through `super`, `self` and names that another module imports again. A module that is imported without
//! a name of it is no import: only what is used below its name counts.

use super::{SourceFile, reached_from, sources};
use std::collections::{BTreeMap, BTreeSet};

/// A path or a module, by its names below the crate.
type Names = Vec<String>;

/// The words of a file, read for imports.
#[derive(Default)]
struct Imports {
    /// The path that a name stands for here.
    named: BTreeMap<String, Names>,
    /// All paths that the file uses.
    used: Vec<Names>,
}

/// The files of a crate, by module.
type Modules = BTreeMap<Names, Imports>;

impl Imports {
    fn read(text: &str) -> Self {
        let text = without_visibilities(text);
        let mut imports = Self::default();
        let mut body = String::new();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let Some((before, tree)) = line
                .split_once("use ")
                .filter(|(before, _)| is_import(before))
            else {
                body.push_str(line);
                body.push('\n');
                continue;
            };
            let mut tree = tree.to_owned();
            while !tree.ends_with(';') {
                tree.push_str(lines.next().expect("an import ends"));
            }
            imports.add_tree(&[], tree.trim_end_matches(';'), before.contains("pub"));
        }
        let words = body.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
        for word in words.filter(|word| word.contains("::")) {
            imports.add_path(word.trim_matches(':').split("::"));
        }
        imports
    }

    /// Adds the leaves of a tree of a `use`. If they are only offered to others, they are no imports of this file.
    fn add_tree(&mut self, above: &[&str], tree: &str, is_offered: bool) {
        let tree = tree.trim();
        if let Some((prefix, inner)) = tree.split_once('{') {
            let names = prefix.split("::").map(str::trim);
            let above: Vec<_> = above.iter().copied().chain(names).collect();
            let above: Vec<_> = above.into_iter().filter(|name| !name.is_empty()).collect();
            let inner = inner.rsplit_once('}').map_or(inner, |(inner, _)| inner);
            branches(inner).for_each(|branch| self.add_tree(&above, branch, is_offered));
            return;
        }
        let (path, alias) = tree.split_once(" as ").unwrap_or((tree, ""));
        let mut names: Vec<_> = above.iter().copied().chain(path.split("::")).collect();
        if names.len() > 1 && names.last() == Some(&"self") {
            names.pop();
        }
        let names: Names = names.into_iter().map(str::to_owned).collect();
        let name = if alias.is_empty() {
            &names[names.len() - 1]
        } else {
            alias
        };
        self.named.insert(name.to_owned(), names.clone());
        if !is_offered {
            self.used.push(names);
        }
    }

    /// Adds a path of the code, whose first name may be an imported one.
    fn add_path<'a>(&mut self, mut names: impl Iterator<Item = &'a str>) {
        let first = names.next().unwrap_or_default();
        let begin = self.named.get(first).cloned();
        let mut path = begin.unwrap_or_else(|| vec![first.to_owned()]);
        path.extend(names.map(str::to_owned));
        self.used.push(path);
    }
}

/// Returns the branches of the inner side of a tree: commas within braces belong to one branch.
fn branches(inner: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    let parts = inner.split(move |c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    parts.filter(|branch| !branch.trim().is_empty())
}

/// Returns whether the words before `use` make it an import.
fn is_import(before: &str) -> bool {
    let before = before.trim();
    before.is_empty() || before.starts_with("pub")
}

/// Leaves out `pub(in crate::…)`, which names a module and imports nothing.
fn without_visibilities(text: &str) -> String {
    let mut parts = text.split("pub(in ");
    let first = parts.next().unwrap_or_default().to_owned();
    let after = parts.filter_map(|part| part.split_once(')'));
    after.fold(first, |text, (_, rest)| text + rest)
}

/// Returns the module that a path of `module` leads to; `None` for another crate, for a local name, and for a module alone.
fn target(modules: &Modules, module: &Names, path: &[String], hops: usize) -> Option<Names> {
    let mut names = path.iter().peekable();
    let mut current = module.clone();
    match path.first()?.as_str() {
        "crate" => current.clear(),
        "self" | "super" => {}
        first => {
            current.push(first.to_owned());
            modules.get(&current)?;
            current.pop();
        }
    }
    while let Some(name) = names.next_if(|name| ["crate", "self", "super"].contains(&name.as_str()))
    {
        if name == "super" {
            current.pop();
        }
    }
    while let Some(name) = names.next() {
        current.push(name.clone());
        if modules.contains_key(&current) {
            continue;
        }
        current.pop();
        // Two names could stand for each other; no path of the code needs more than a few hops.
        let stands_for = modules.get(&current)?.named.get(name).filter(|_| hops < 8);
        let Some(stands_for) = stands_for else {
            return Some(current);
        };
        let path: Names = stands_for.iter().chain(names).cloned().collect();
        return target(modules, &current, &path, hops + 1);
    }
    None
}

/// Returns the circles of files, each sorted.
fn circles(modules: &Modules) -> BTreeSet<Vec<String>> {
    let mut imported: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (module, imports) in modules {
        let found = imports.used.iter();
        let found = found.filter_map(|path| target(modules, module, path, 0));
        let others = found.filter(|other| other != module);
        imported.insert(
            module.join("::"),
            others.map(|other| other.join("::")).collect(),
        );
    }
    let is_mutual = |module: &str, other: &str| reached_from(other, &imported).contains(module);
    let circle = |module: &String| {
        let reached = reached_from(module, &imported).into_iter();
        let mutual = reached.filter(|other| is_mutual(module, other));
        mutual.map(str::to_owned).collect::<Vec<_>>()
    };
    let mut found: BTreeSet<_> = imported.keys().map(circle).collect();
    found.remove(&Vec::new());
    found
}

/// Returns the module of a file and its imports; `None` for a file of tests.
fn module(file: &SourceFile) -> Option<(Names, Imports)> {
    let path = file.path.to_str().unwrap();
    let (_, below) = path.rsplit_once("/src/").unwrap();
    let mut names: Names = below
        .trim_end_matches(".rs")
        .split('/')
        .map(str::to_owned)
        .collect();
    if names.iter().any(|name| name == "tests" || name == "main") {
        return None;
    }
    if names
        .last()
        .is_some_and(|name| name == "mod" || name == "lib")
    {
        names.pop();
    }
    let code = file.text.split("#[cfg(test)]\nmod tests {").next().unwrap();
    Some((names, Imports::read(code)))
}

#[test]
fn no_more_than_three_files_import_each_other() {
    let sources = sources();
    let members: BTreeSet<_> = sources.iter().map(|file| &file.member).collect();
    let mut large = Vec::new();
    for member in members {
        let files = sources.iter().filter(|file| file.member == *member);
        let modules: Modules = files.filter_map(module).collect();
        let circles = circles(&modules).into_iter();
        let circles = circles.filter(|circle| circle.len() > 3);
        large.extend(circles.map(|circle| format!("{member}: {}", circle.join(", "))));
    }
    assert_eq!(large, [""; 0]);
}

#[test]
fn a_circle_is_found_through_super_braces_and_names_that_are_imported_again() {
    let files = [
        (
            "a",
            "use crate::b::{self, c::{D, E as F}};\nfn f() { b::g() }",
        ),
        ("b", "pub use c::D;\npub mod c;\npub(in crate::a) fn g() {}"),
        ("b::c", "use super::super::d::{\n    Again,\n};"),
        ("d", "use crate::a;\npub use crate::e::Again;"),
        ("e", "fn f() { crate::a::f() }"),
    ];
    let module = |(name, text): (&str, &str)| {
        let names = name.split("::").map(str::to_owned).collect();
        (names, Imports::read(text))
    };
    let found = circles(&files.map(module).into());
    assert_eq!(
        found,
        [["a", "b::c", "e"].map(str::to_owned).to_vec()].into()
    );
}
