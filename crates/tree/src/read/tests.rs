//! Tests with trees that change during a walk, and with programs that have rules for their own
//! files.

use super::{
    Overlay, SourceTree, Top, TopRole, TreeRules,
    inner::{RETRY_INTERVAL, TreeInner},
    listing::{DirectoryToList, ListingPace},
    walk::LOST,
};
use crate::{file_rules::FileRules, patterns::Patterns};
use fullbore_format::{
    entry::{Entry, EntryKind, EntryPath},
    page::EntryState,
};
use fullbore_pipeline::{
    frame::{Scanned, Slice},
    source::Source,
};
use fullbore_platform::{dir, queue::promise};
use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{RecvTimeoutError, channel},
    },
    thread::sleep,
    time::Duration,
};

/// A program that repairs its files, or does not.
struct Program(bool);

impl Overlay for Program {
    fn pick(&self, _: &[u8], _: &mut Vec<dir::DirName>) {
        assert!(!self.0, "a defect that this test has put there");
    }

    fn open(&self, _: &[u8]) -> Option<io::Result<OwnedFd>> {
        None
    }

    fn repairs(&self, _: &[u8]) -> bool {
        false
    }

    fn expects(&self, _: &[u8]) -> bool {
        false
    }
}

fn rules(overlay: Option<Arc<dyn Overlay>>, one_file_system: bool) -> Arc<TreeRules> {
    Arc::new(TreeRules {
        exclude: Patterns::default(),
        files: FileRules {
            one_file_system,
            ..FileRules::default()
        },
        looks_twice: false,
        on_excluded: None,
        caches: Default::default(),
        walkers: 2,
        own: Arc::default(),
        overlay,
        torn: |_, _| None,
    })
}

fn top(dir: &std::path::Path, at: &str) -> Top {
    Top {
        at: at.into(),
        dir: dir::open_root(dir).unwrap(),
        name: None,
        role: TopRole::Named,
    }
}

#[test]
fn a_walk_without_threads_does_not_wait_for_a_listing() {
    let dir = tempfile::tempdir().unwrap();
    let tops = ["a", "b", "c", "d"]
        .map(|path| top(dir.path(), path))
        .into();
    let tree = SourceTree::new(
        tops,
        Default::default(),
        Default::default(),
        rules(Some(Arc::new(Program(true))), false),
    );
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let states: Vec<EntryState> = tree
            .scan()
            .unwrap()
            .map(|scanned| scanned.unwrap().state)
            .collect();
        sender.send(states).unwrap();
    });
    let states = receiver.recv_timeout(Duration::from_secs(60));
    assert_ne!(states, Err(RecvTimeoutError::Timeout), "it hangs");
    assert_eq!(
        states.unwrap(),
        vec![EntryState::Unreadable(LOST.into()); 4]
    );
}

/// Like a directory of an automounter or an NFS server: opening it mounts a file system.
#[test]
fn a_directory_that_is_on_another_device_once_it_is_open_has_no_names() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), "").unwrap();
    for (one_file_system, apart) in [(false, 0), (false, 1), (true, 0), (true, 1)] {
        let inner = TreeInner::new(vec![top(dir.path(), "")], rules(None, one_file_system));
        let dev = dir::stat_fd(&inner.tops[0].dir).unwrap().dev + apart;
        let (promise, answer) = promise();
        inner.list_all(
            vec![(
                DirectoryToList {
                    path: EntryPath::new(),
                    dev,
                    is_whole: true,
                },
                promise,
            )],
            &mut Vec::new(),
            &mut ListingPace::begin(),
        );
        let count = answer.wait().unwrap().unwrap().children.len();
        assert_eq!(
            count,
            usize::from(!one_file_system || apart == 0),
            "{one_file_system} {apart}"
        );
    }
}

#[test]
fn a_directory_that_a_program_removed_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let program: Arc<dyn Overlay> = Arc::new(Program(false));
    for (overlay, there) in [(Some(program), false), (None, true)] {
        let entry = Entry {
            path: "gone".into(),
            kind: EntryKind::Directory,
            ..Entry::default()
        };
        let members = vec![Scanned::new(entry, EntryState::Vanished)];
        let tree = SourceTree::new(
            vec![top(dir.path(), "")],
            Default::default(),
            Default::default(),
            rules(overlay, false),
        );
        let frame = tree
            .read(Slice::Members(members, None), Vec::new().into())
            .unwrap();
        assert_eq!(
            (frame.parts.is_empty(), frame.data.is_empty()),
            (!there, !there)
        );
    }
}

/// A server: objects named `goes` vanish after they were listed, and one of them returns a moment
/// later. Objects named `own` are removed by the server itself.
struct Server {
    dir: PathBuf,
    goes: [&'static str; 3],
    returns: &'static str,
}

impl Overlay for Server {
    fn pick(&self, _: &[u8], _: &mut Vec<dir::DirName>) {
        self.goes
            .iter()
            .for_each(|name| fs::remove_file(self.dir.join(name)).unwrap());
        let back = self.dir.join(self.returns);
        std::thread::spawn(move || {
            sleep(RETRY_INTERVAL + RETRY_INTERVAL / 2);
            fs::write(back, "again").unwrap();
        });
    }

    fn open(&self, _: &[u8]) -> Option<io::Result<OwnedFd>> {
        None
    }

    fn repairs(&self, _: &[u8]) -> bool {
        false
    }

    fn expects(&self, path: &[u8]) -> bool {
        !path.starts_with(b"own")
    }
}

#[test]
fn a_file_being_replaced_is_awaited_and_only_a_server_s_own_files_vanish_silently() {
    let dir = tempfile::tempdir().unwrap();
    let goes = ["lost", "own", "returns"];
    goes.iter()
        .chain(&["stays"])
        .for_each(|name| fs::write(dir.path().join(name), "x").unwrap());
    let server = Server {
        dir: dir.path().to_owned(),
        goes,
        returns: "returns",
    };
    let tops = vec![top(dir.path(), "")];
    let tree = SourceTree::new(
        tops,
        Default::default(),
        Default::default(),
        rules(Some(Arc::new(server)), false),
    );
    let found: BTreeMap<EntryPath, EntryState> = tree
        .scan()
        .unwrap()
        .map(|scanned| scanned.unwrap())
        .map(|scanned| (scanned.entry.path, scanned.state))
        .collect();
    let states = [
        ("", EntryState::Whole),
        ("lost", EntryState::Vanished),
        ("returns", EntryState::Whole),
        ("stays", EntryState::Whole),
    ];
    assert_eq!(
        found,
        states
            .map(|(path, state)| (path.as_bytes().to_vec(), state))
            .into()
    );
}

/// Returns all objects but the top, with a mark for each state that is not whole.
fn walked(tree: &SourceTree) -> Vec<String> {
    let scanned = tree.scan().unwrap().map(|scanned| scanned.unwrap());
    let name = |Scanned { entry, state, .. }: Scanned| {
        let mark = if state.is_stored() { "" } else { " unreadable" };
        String::from_utf8(entry.path).unwrap() + mark
    };
    scanned.map(name).skip(1).collect()
}

#[test]
fn a_named_top_is_delivered_although_its_parent_vanishes_before_it_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    let away = dir.path().join("away");
    fs::create_dir_all(tree.join("a/b/c")).unwrap();
    ["a/b/c/f", "a/b/g", "a/h", "z"]
        .iter()
        .for_each(|name| fs::write(tree.join(name), "x").unwrap());
    let open = || {
        let above = |path: &str| Top {
            role: TopRole::Above,
            ..top(&tree.join(path), path)
        };
        let tops = vec![
            top(&tree, ""),
            above("a"),
            above("a/b"),
            top(&tree.join("a/b/c"), "a/b/c"),
        ];
        SourceTree::new(
            tops,
            Default::default(),
            Default::default(),
            rules(None, false),
        )
    };
    assert_eq!(
        walked(&open()),
        ["a", "a/b", "a/b/c", "a/b/c/f", "a/b/g", "a/h", "z"]
    );
    let opened = open();
    fs::rename(tree.join("a/b"), &away).unwrap();
    assert_eq!(
        walked(&opened),
        ["a", "a/b", "a/b/c", "a/b/c/f", "a/h", "z"]
    );
    fs::rename(&away, tree.join("a/b")).unwrap();
    let opened = open();
    fs::rename(tree.join("a"), &away).unwrap();
    std::os::unix::fs::symlink(&away, tree.join("a")).unwrap();
    assert_eq!(walked(&opened), ["a", "a/b", "a/b/c", "a/b/c/f", "z"]);
}

#[test]
fn a_top_that_became_a_directory_ends_the_walk() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("was-a-file/below")).unwrap();
    let named = Top {
        name: Some(b"was-a-file".to_vec()),
        ..top(dir.path(), "was-a-file")
    };
    let tree = SourceTree::new(
        vec![named],
        Default::default(),
        Default::default(),
        rules(None, false),
    );
    let first = tree.scan().unwrap().next().unwrap();
    let Err(error) = first else {
        panic!("it was walked");
    };
    let error = error.line();
    assert!(error.contains("is now a directory"), "{error}");
}

#[test]
fn named_tops_of_an_excluded_directory_are_delivered_in_several_batches() {
    let dir = tempfile::tempdir().unwrap();
    fullbore_platform::raise_open_files_limit();
    let names: Vec<String> = (0..1100).map(|n| format!("a/{n:04}")).collect();
    fs::create_dir(dir.path().join("a")).unwrap();
    names
        .iter()
        .for_each(|name| fs::create_dir(dir.path().join(name)).unwrap());
    fs::write(dir.path().join("a/other"), "x").unwrap();
    let above = Top {
        role: TopRole::Above,
        ..top(&dir.path().join("a"), "a")
    };
    let named = names.iter().map(|name| top(&dir.path().join(name), name));
    let tops = [top(dir.path(), ""), above]
        .into_iter()
        .chain(named)
        .collect();
    let out = TreeRules {
        exclude: Patterns::of(b"a"),
        ..Arc::into_inner(rules(None, false)).unwrap()
    };
    let tree = SourceTree::new(tops, Default::default(), Default::default(), Arc::new(out));
    assert_eq!(walked(&tree), [&["a".to_owned()], &names[..]].concat());
}
