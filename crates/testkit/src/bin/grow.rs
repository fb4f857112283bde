//! `grow DIR SOURCES ROUNDS FILES CHANGED_ONE_OF`: makes a repository of very many backups in a directory that does not exist.

use std::{env, fs, path::Path};
use testkit::growth::Growth;

fn main() {
    let words: Vec<String> = env::args().skip(1).collect();
    let [dir, numbers @ ..] = &words[..] else {
        panic!("use: grow DIR SOURCES ROUNDS FILES CHANGED_ONE_OF");
    };
    let numbers: Vec<usize> = numbers.iter().map(|word| word.parse().unwrap()).collect();
    let [sources, rounds, files, changed_one_of] = numbers[..] else {
        panic!("use: grow DIR SOURCES ROUNDS FILES CHANGED_ONE_OF");
    };
    let growth = Growth {
        sources,
        rounds,
        files,
        changed_one_of,
    };
    let dir = Path::new(dir);
    fs::create_dir(dir).unwrap();
    growth.write(&mut |key, bytes| {
        let path = dir.join(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    });
    fs::create_dir(dir.join("intents")).unwrap();
}
