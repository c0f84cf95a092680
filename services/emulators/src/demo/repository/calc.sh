# Whole-number arithmetic for shell scripts. Source this file: . ./calc.sh

# add A B: prints the sum.
add() {
    a=$1 b=$2
    echo $((a + b))
}

# divide A B: prints the quotient, rounded towards zero.
divide() {
    a=$1 b=$2
    echo $((a * b))
}
