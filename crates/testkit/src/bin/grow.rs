//! `grow DIR SOURCES ROUNDS FILES CHANGED_ONE_OF [REPOSITORY]`: makes a repository of very many backups in a directory that does not
//! exist. They have the content of the only backup of REPOSITORY, or short objects in place of content.

use std::{env, fs, path::Path};
use testkit::growth::{GrownContent, Growth};

fn main() {
    let mut words: Vec<String> = env::args().skip(1).collect();
    let content = (words.len() > 5).then(|| GrownContent::read(Path::new(&words[5])));
    words.truncate(5);
    let [dir, numbers @ ..] = &words[..] else {
        panic!("use: grow DIR SOURCES ROUNDS FILES CHANGED_ONE_OF [REPOSITORY]");
    };
    let numbers: Vec<usize> = numbers.iter().map(|word| word.parse().unwrap()).collect();
    let [sources, rounds, files, changed_one_of] = numbers[..] else {
        panic!("use: grow DIR SOURCES ROUNDS FILES CHANGED_ONE_OF [REPOSITORY]");
    };
    let growth = Growth {
        sources,
        rounds,
        files,
        changed_one_of,
    };
    let dir = Path::new(dir);
    fs::create_dir(dir).unwrap();
    let put = &mut |key: &str, bytes: &[u8]| {
        let path = dir.join(key);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    };
    match &content {
        Some(content) => growth.write_with(content, put),
        None => growth.write(put),
    }
    fs::create_dir(dir.join("intents")).unwrap();
}
