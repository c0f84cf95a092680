//! Deleting what an agent left behind. The tree is hostile: any depth, any names, any modes, symlinks to anywhere. No
//! symlink is followed, and depth costs nothing: a nested directory is first moved up to the top, so that at most three
//! directories are open at a time and no path is longer than one name. Only for trees without living processes.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

/// Deletes the directory `name` in `parent` and everything in it; fine when it is not there. Can be cut at any point and
/// called again. Blocking.
pub(crate) fn delete(parent: &Path, name: &str) -> io::Result<()> {
    let parent = crate::descriptors::open_directory(parent)?;
    let name = CString::new(name)?;
    let top = match open_any(&parent, &name) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) => return Ok(rustix::fs::unlinkat(&parent, &name, AtFlags::empty())?),
        Err(failure) => return Err(failure.into()),
    };
    let mut moved = 0_u64;
    loop {
        let entries = entries(&top)?;
        if entries.is_empty() {
            break;
        }
        for entry in entries {
            if is_directory(&top, &entry)? {
                flatten(&top, &entry, &mut moved)?;
            } else {
                unlink(&top, &entry)?;
            }
        }
    }
    match rustix::fs::unlinkat(&parent, &name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(failure) => Err(failure.into()),
    }
}

/// Empties one directory of the top, moving its subdirectories up, and removes it.
fn flatten(top: &OwnedFd, name: &CStr, moved: &mut u64) -> io::Result<()> {
    let directory = match open_any(top, name) {
        Ok(directory) => directory,
        Err(Errno::NOENT) => return Ok(()),
        Err(failure) => return Err(failure.into()),
    };
    for entry in entries(&directory)? {
        if !is_directory(&directory, &entry)? {
            unlink(&directory, &entry)?;
            continue;
        }
        // Moving a directory changes its `..`, for which its owner needs write permission on it.
        make_accessible(&directory, &entry)?;
        loop {
            *moved += 1;
            // The agent may have taken any name at the top of an earlier, interrupted deletion: never replace.
            let target = CString::new(format!("~{moved}"))?;
            match rustix::fs::renameat_with(&directory, &entry, top, &target, RenameFlags::NOREPLACE) {
                Ok(()) | Err(Errno::NOENT) => break,
                Err(Errno::EXIST) => {}
                Err(failure) => return Err(failure.into()),
            }
        }
    }
    match rustix::fs::unlinkat(top, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(failure) => Err(failure.into()),
    }
}

fn entries(directory: &OwnedFd) -> io::Result<Vec<CString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_owned();
        if name.as_bytes() != b"." && name.as_bytes() != b".." {
            names.push(name);
        }
        // Bounded memory for a directory with millions of entries: callers come back until it is empty.
        if names.len() >= 100_000 {
            break;
        }
    }
    Ok(names)
}

fn is_directory(directory: &OwnedFd, name: &CStr) -> io::Result<bool> {
    match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
        Err(Errno::NOENT) => Ok(false),
        Err(failure) => Err(failure.into()),
    }
}

fn unlink(directory: &OwnedFd, name: &CStr) -> io::Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(failure) => Err(failure.into()),
    }
}

/// Opens a directory, never through a symlink, giving its owner (us) the permission first where needed.
fn open_any(parent: impl AsFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    let mode = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode;
    if FileType::from_raw_mode(mode) == FileType::Directory {
        make_accessible(&parent, name)?;
    }
    rustix::fs::openat(&parent, name, flags, Mode::empty())
}

/// `name` was seen to be a directory, and nothing is alive that could swap it for a symlink.
fn make_accessible(parent: impl AsFd, name: &CStr) -> Result<(), Errno> {
    let mode = rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?.st_mode;
    if mode & 0o700 == 0o700 {
        return Ok(());
    }
    rustix::fs::chmodat(&parent, name, Mode::RWXU, AtFlags::empty())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn many_files_are_deleted_quickly() {
        let base = tempfile::tempdir().unwrap();
        let tree = base.path().join("tree");
        for folder in 0..20 {
            let folder = tree.join(format!("d{folder}"));
            fs::create_dir_all(&folder).unwrap();
            for file in 0..200 {
                fs::write(folder.join(format!("n{file}")), "x").unwrap();
            }
        }
        let began = std::time::Instant::now();
        delete(base.path(), "tree").unwrap();
        assert!(!tree.exists());
        let took = began.elapsed();
        println!("4,000 files deleted in {took:?}");
        assert!(took < std::time::Duration::from_secs(10), "{took:?}");
    }

    #[test]
    fn deep_trees_odd_modes_and_symlinks_are_deleted_without_leaving_the_tree() {
        let base = tempfile::tempdir().unwrap();
        let outside = base.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "kept").unwrap();
        let tree = base.path().join("tree");
        fs::create_dir_all(tree.join("a/b/c")).unwrap();
        fs::write(tree.join("a/b/c/file"), "x").unwrap();
        symlink(&outside, tree.join("a/link")).unwrap();
        symlink("/", tree.join("a/b/root")).unwrap();
        fs::create_dir(tree.join("~1")).unwrap();
        fs::set_permissions(tree.join("a/b/c"), fs::Permissions::from_mode(0o000)).unwrap();
        fs::set_permissions(tree.join("a/b"), fs::Permissions::from_mode(0o000)).unwrap();
        // Far deeper than a path can be long, and than descriptors can be open.
        let mut at = crate::descriptors::open_directory(&tree).unwrap();
        for _ in 0..5000 {
            rustix::fs::mkdirat(&at, "a-fairly-long-name", Mode::RWXU).unwrap();
            at = rustix::fs::openat(&at, "a-fairly-long-name", OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty())
                .unwrap();
        }
        drop(at);
        delete(base.path(), "tree").unwrap();
        assert!(!tree.exists());
        assert!(outside.join("kept").exists());
        delete(base.path(), "tree").unwrap();
    }
}
