//! The whole product from outside (one file per promise to users) and rules about the tree.

mod suite {
    mod bad_input;
    mod commands;
    mod coverage;
    mod crash;
    mod deletion;
    mod main_job;
    mod secrets;
    mod steering;
    mod streams;
    mod tidy;
    mod traces;
}
