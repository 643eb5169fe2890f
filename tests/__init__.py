from mecam._garbage import collect_rarely

collect_rarely()
