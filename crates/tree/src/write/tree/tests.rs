use super::*;
use crate::write::writer::TargetWriter;
use fullbore_format::entry::{Entry, EntryKind};
use std::fs;

/// Opens a tree that treats names of another case as the same. On other file systems, the test
/// creates the second name itself.
fn folding(root: &std::path::Path) -> Arc<TargetTree> {
    let options = TargetOptions {
        overwrite: true,
        ..TargetOptions::default()
    };
    let tree = TargetTree::create(&TargetLayout::plain(root), options).unwrap();
    let mut tree = Arc::into_inner(tree).unwrap();
    tree.made.get_or_insert_default();
    Arc::new(tree)
}

fn file(path: &str, data: &str) -> Entry {
    let kind = EntryKind::File {
        size: data.len() as u64,
        map: None,
    };
    Entry {
        path: path.as_bytes().to_vec(),
        kind,
        mode: 0o644,
        ..Entry::default()
    }
}

#[test]
fn an_object_of_this_restore_is_not_replaced_under_another_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("Case"), "from before").unwrap();
    let mut writer = TargetWriter::new(&folding(dir.path()));
    writer.file(&file("Case", "one"), b"one").unwrap();
    fs::hard_link(path("Case"), path("case")).unwrap();
    let error = writer.file(&file("case", "two"), b"two").unwrap_err();
    assert_eq!(
        (error.kind, error.hint.is_none()),
        (ErrorKind::Exists, true),
        "{}",
        error.line()
    );
    assert_eq!(
        writer.link(b"case", b"other").unwrap_err().kind,
        ErrorKind::NotFound
    );
    assert_eq!(fs::read(path("case")).unwrap(), b"one");
    // A file with two names, one of which was replaced.
    fs::write(path("x"), "x").unwrap();
    fs::hard_link(path("x"), path("y")).unwrap();
    writer
        .tree
        .unless_name_taken(b"x", fs::File::open(dir.path()).unwrap(), b"x", || Ok(()))
        .unwrap();
    [("x", "anew"), ("y", "anew too")]
        .iter()
        .for_each(|(name, data)| {
            writer.file(&file(name, data), data.as_bytes()).unwrap();
        });
    // A tar may hold the same name twice.
    writer.file(&file("Case", "three"), b"three").unwrap();
    assert_eq!(
        (
            fs::read(path("Case")).unwrap(),
            fs::read(path("case")).unwrap()
        ),
        (b"three".into(), b"one".into())
    );
}

#[test]
fn a_directory_that_a_restore_has_made_is_not_entered_under_another_name() {
    let dir = tempfile::tempdir().unwrap();
    let inside = |name: &str| dir.path().join(name);
    fs::create_dir(inside("before")).unwrap();
    let make = |path: &str, writer: &mut TargetWriter| {
        writer.directory(
            &Entry {
                kind: EntryKind::Directory,
                ..file(path, "")
            },
            true,
        )
    };
    let mut writer = TargetWriter::new(&folding(dir.path()));
    assert!(make("Dir", &mut writer).unwrap() && !make("before", &mut writer).unwrap());
    writer.file(&file("Implied/f", ""), b"").unwrap();
    for [name, other] in [["Dir", "dir"], ["before", "BEFORE"], ["Implied", "implied"]] {
        fs::create_dir(inside(other)).unwrap();
        let error = make(other, &mut writer).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Exists, "{}", error.line());
        let below = file(&format!("{other}/in/it"), "");
        assert_eq!(
            writer.file(&below, b"").unwrap_err().kind,
            ErrorKind::Exists
        );
        assert_eq!(fs::read_dir(inside(other)).unwrap().count(), 0);
        writer
            .file(&file(&format!("{name}/in/it"), ""), b"")
            .unwrap();
    }
}
