"""What a Trace says about its job: steps, exposed communication, waiting, idle time, advice."""
